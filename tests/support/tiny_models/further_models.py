# SPDX-License-Identifier: Apache-2.0
"""Model classes that transformers does not have, or has by other names, in files of their own."""

from __future__ import annotations

import functools

from tests.support.tiny_models import (
    deepseek_v32,
    further_heads,
    hy_v3,
    kimi_linear,
    longcat_flash,
    mimo_v2,
    nemotron_h,
    openpangu,
    step3p5,
)
from tests.support.tiny_models.heads import MTP_HEADS
from tests.support.tiny_models.own_names import register as register_family


@functools.cache
def register() -> None:
    """Let transformers' Auto classes know them, and heads of all families be built."""
    deepseek_v32.register()
    MTP_HEADS.update(further_heads.FURTHER_HEADS)
    register_family(hy_v3.HyV3ForCausalLM, hy_v3.HyV3MtpHead)
    register_family(kimi_linear.KimiLinearForCausalLM)
    register_family(longcat_flash.LongcatFlashForCausalLM, longcat_flash.LongcatMtpHead)
    register_family(mimo_v2.MimoV2ForCausalLM, mimo_v2.MimoV2MtpHead)
    register_family(nemotron_h.NemotronHForCausalLM, nemotron_h.NemotronHMtpHead)
    register_family(openpangu.OpenPanguForCausalLM, openpangu.OpenPanguMtpHead)
    register_family(step3p5.Step3p5ForCausalLM, step3p5.Step3p5MtpHead)

# SPDX-License-Identifier: Apache-2.0
"""Model classes that transformers does not have, or has by other names, in files of their own."""

from __future__ import annotations

from tests.support.tiny_models import (
    deepseek_v32,
    hy_v3,
    kimi_linear,
    longcat_flash,
    mimo_v2,
    nemotron_h,
    openpangu,
    step3p5,
)


def register() -> None:
    """Let transformers' Auto classes know them. Once per process."""
    for family in (
        deepseek_v32,
        hy_v3,
        kimi_linear,
        longcat_flash,
        mimo_v2,
        nemotron_h,
        openpangu,
        step3p5,
    ):
        family.register()

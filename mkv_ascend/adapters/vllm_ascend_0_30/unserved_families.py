# SPDX-License-Identifier: Apache-2.0
"""Families that vLLM 0.30.0 or vllm-ascend 0.30.0rc2 refuses, or serves wrongly.

Importing this module imports neither vLLM nor vllm-ascend.
"""

from __future__ import annotations

from mkv_ascend.rules.facts import MINIMAX_M2_AS_DRAFT, UnservedFamily

OTHER_HOST = "vllm-ascend 0.23.0 with vLLM 0.23.0"
FAMILIES = (
    MINIMAX_M2_AS_DRAFT,
    UnservedFamily(
        frozenset({"LongcatFlashForCausalLM", "LongcatFlashNgramForCausalLM"}),
        "a LongCat-Flash: its layers have two attentions each, whose names vllm-ascend 0.30.0rc2 "
        "does not read, and experts without matrices, which its router takes for others",
        OTHER_HOST,
        "serve it there",
    ),
    UnservedFamily(
        # worker/patch_step3p5.py puts a fused kernel in the place of vLLM's attention.
        frozenset({"Step3p5ForCausalLM", "Step3p7ForConditionalGeneration"}),
        "a Step-3.5 in {dtype}: the fused kernel that vllm-ascend 0.30.0rc2 calls for its queries "
        "and keys holds them in bfloat16, and takes no other dtype",
        f"--dtype bfloat16, or {OTHER_HOST}",
        "write --dtype bfloat16",
        dtypes=frozenset({"bfloat16"}),
    ),
    UnservedFamily(
        frozenset({"ExaoneMoEForCausalLM"}),
        "a K-EXAONE of the first version, whose class vLLM 0.30.0 does not have by this name",
        f"K-EXAONE 2.0, or {OTHER_HOST}",
        "serve it there",
    ),
)

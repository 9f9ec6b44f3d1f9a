# SPDX-License-Identifier: Apache-2.0
"""Families that vLLM 0.23.0 refuses and vLLM 0.30.0 serves.

Importing this module imports neither vLLM nor vllm-ascend.
"""

from __future__ import annotations

from mkv_ascend.rules.facts import MINIMAX_M2_AS_DRAFT, UnservedFamily

FAMILIES = (
    MINIMAX_M2_AS_DRAFT,
    UnservedFamily(
        frozenset({"ExaoneMoeForCausalLM"}),
        "a K-EXAONE 2.0, whose class vLLM 0.23.0 does not have by this name",
        "K-EXAONE of the first version, or vllm-ascend 0.30.0rc2 with vLLM 0.30.0",
        "serve it there",
    ),
)

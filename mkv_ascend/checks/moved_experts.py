# SPDX-License-Identifier: Apache-2.0
"""Experts that move between ranks while an engine runs (``--enable-eplb`` of model runner V2)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mkv_ascend.checks.model import EXPERTS

__all__ = ["copies_of", "is_judged_where_experts_move"]

MOVE_WITH_MTP = frozenset({"deepseek_v3", "glm4_moe", "qwen3_next"})
"""Model types whose drafting layers are judged while their experts move with the target's."""


def is_judged_where_experts_move(
    method: str, draft: Mapping[str, Any], target: Mapping[str, Any], copies: int
) -> bool:
    """Whether tests judge such a draft on V2 beside experts that move.

    With copies vllm-ascend 0.30.0rc2 gives wrong tokens of some targets without a draft, too, and
    vLLM 0.30.0 fills no copies of drafting layers.

    Args:
        draft, target: configurations of the language models.
        copies: experts of a layer beyond those of the checkpoint (``num_redundant_experts``).
    """
    if copies:
        return False
    if not any(draft.get(name) for name in EXPERTS):
        return True
    return method == "mtp" and target.get("model_type") in MOVE_WITH_MTP


def copies_of(eplb_config: Any) -> int:
    """``num_redundant_experts`` of the option ``--eplb-config`` as it was given."""
    found = eplb_config.get("num_redundant_experts") if isinstance(eplb_config, Mapping) else 0
    return found if type(found) is int else 0

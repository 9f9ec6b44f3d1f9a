# SPDX-License-Identifier: Apache-2.0
"""What the proposals of a pair cost, by exact count (``proposal_probe.py`` counts)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.support import programs
from tests.support.pairs import scenario, text_prompts

PROBE = Path(__file__).parents[1] / "emulated" / "drafting" / "proposal_probe.py"
MAX_LAUNCHES = 6
"""Launches of a proposal beside the draft's own work, at the most."""
REPLAY, UPDATE = "NPUGraph.replay", "graph_task_update"


def probe(
    target: str,
    draft: str | None,
    *,
    max_tokens: int = 10,
    variables: Mapping[str, str] | None = None,
    **fields: Any,
) -> Any:
    """Run a pair of tiny models and count.

    Args:
        max_tokens: tokens to generate for each of three prompts.
        variables: of the engine's environment.
        fields: further fields of its scenario.
    """
    case = scenario(target, draft, record_drafts=False, **fields)
    request = {
        "engine": {**case.engine_arguments(), "async_scheduling": False},
        "prompts": text_prompts(case.model, 3),
        "max_tokens": max_tokens,
    }
    return programs.answer_of(PROBE, request, variables)

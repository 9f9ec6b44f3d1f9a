# SPDX-License-Identifier: Apache-2.0
"""Engines whose longest request is what their memory holds (`--max-model-len auto`).

`mkv-ascend check` says how long that is. An engine with a shorter one refuses the prompts here,
and one with a longer one gives more tokens.
"""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

from reliability.scenarios import LONGEST, Case
from tests.support.engine import Scenario

__all__ = ["AUTO", "is_shortened", "shortened", "with_length"]

AUTO = -1
"""How the options of an engine spell ``auto``."""
SIZING = ("gpu_memory_utilization", "num_gpu_blocks_override")
"""Other ways to say how much memory there is."""
MEMORY = (768 << 10, 1 << 20, 2 << 20, 4 << 20)
"""Bytes of caches: of most tiny models less than the longest request takes."""


def shortened(chance: random.Random, scenario: Scenario) -> Scenario:
    """The scenario with little memory, and a longest request that fits into it."""
    kept: dict[str, Any] = {k: v for k, v in scenario.engine.items() if k not in SIZING}
    kept |= {"max_model_len": AUTO, "kv_cache_memory_bytes": chance.choice(MEMORY)}
    if kept.get("enable_chunked_prefill") is False:
        # A prompt is one step then, and nothing says how long one may be.
        del kept["enable_chunked_prefill"]
    return replace(scenario, engine=kept)


def is_shortened(case: Case) -> bool:
    """Whether the engine is to find out how long a request may be."""
    return bool(case.scenario.engine["max_model_len"] == AUTO)


def with_length(case: Case, tokens: int) -> Case:
    """The case with prompts that fit, the first of which leaves room for two tokens if it can.

    Args:
        tokens: of the longest request, as ``mkv-ascend check`` tells it.
    """
    most = max(1, min(LONGEST, tokens - 2))
    first, *others = case.scenario.prompts
    filled = (first * (-(-most // len(first))))[:most]
    prompts = [filled, *(prompt[:most] for prompt in others)]
    return replace(case, scenario=replace(case.scenario, prompts=prompts), longest=tokens)

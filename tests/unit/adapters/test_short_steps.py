# SPDX-License-Identifier: Apache-2.0
"""Steps and chunks that never reach the end of a block of states, on vLLM 0.23.0."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests.support import hosts

hosts.skip_module_unless("vllm_ascend_0_23", "vLLM 0.30.0 lets a chunk end inside a block")
refuse_short_steps = hosts.module("patches.recurrent").refuse_short_steps


def config(mode: str = "align", most: int = 1024, scheduled: Any = None, chunk: int = 0) -> Any:
    return SimpleNamespace(
        cache_config=SimpleNamespace(mamba_cache_mode=mode, block_size=512),
        scheduler_config=SimpleNamespace(
            max_num_batched_tokens=most,
            max_num_scheduled_tokens=scheduled,
            long_prefill_token_threshold=chunk,
        ),
    )


@pytest.mark.parametrize(
    "given",
    [
        {"most": 512},
        {"most": 600, "scheduled": 512},
        {"chunk": 512},
        {"mode": "none", "most": 64, "chunk": 64},
    ],
)
def test_a_step_and_a_chunk_of_a_whole_block_are_served(given: dict[str, Any]) -> None:
    refuse_short_steps(config(**given))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"most": 511}, "a step takes at most 511: .*raise it by 1 or more"),
        # What drafts keep of a step is not the scheduler's to give.
        ({"most": 600, "scheduled": 500}, r"at most 500: .*\(600\) drafts keep the rest; .* by 12"),
        ({"chunk": 511}, "chunks of 511: none would reach that end. Raise it to 512"),
    ],
)
def test_less_is_refused_with_what_to_change(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        refuse_short_steps(config(**given))

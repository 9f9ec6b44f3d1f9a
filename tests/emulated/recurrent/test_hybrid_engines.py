# SPDX-License-Identifier: Apache-2.0
"""Engines with a target that has recurrent states: Qwen3-Next, and drafts of other page sizes.

The target's weights are random, so it accepts almost no token of a trained draft: in every step its
states go back to the last accepted token.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.emulated import probes
from tests.support import engine, programs
from tests.support.models.random_models import random_model
from tests.support.pairs import assert_drafts_are_the_drafts_own, assert_greedy_tokens_of_reference
from tests.support.tiny_models import model_directory

pytestmark = pytest.mark.host("0.23")

STATE = "linear_attn"
BLOCK = 256
"""Tokens: vllm-ascend's choice, so that keys are as many bytes as a state."""
DRAFT = "gemma3_draft"
"""A layer with a window and one without, of twice the target's bytes per token."""


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Blocks that vllm-ascend makes 256 tokens."""
    return random_model(tmp_path_factory.mktemp("aligned"), value_heads=4, kv_heads=1)


@pytest.fixture(scope="module")
def unaligned(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A state as large as the keys of one and a half blocks of 128 tokens."""
    return random_model(tmp_path_factory.mktemp("unaligned"), value_heads=6, kv_heads=2)


def case(target: str, **fields: Any) -> engine.Scenario:
    prompts = [[5 + (step * 7) % 250 for step in range(length)] for length in (5, 40, 300, 70)]
    values = {
        "model": target,
        "draft": str(model_directory(DRAFT)),
        "prompts": prompts,
        "max_tokens": 12,
        "record_drafts": True,
        **fields,
    }
    return engine.Scenario(**values)


def test_tokens_and_drafts_are_right_also_after_a_prefix_hit(target: str) -> None:
    """Twice; the second time after a hit of as many blocks as without a draft."""
    scenario = case(target, engine={"enable_prefix_caching": True}, repeats=2)
    result = engine.run(scenario)
    assert max(result.cached_tokens) == BLOCK == 300 // BLOCK * BLOCK
    assert_greedy_tokens_of_reference(scenario, result)
    assert_drafts_are_the_drafts_own(scenario, result)
    states = {row["kv_group"] for row in result.layers if STATE in row["name"]}
    drafted = {row["kv_group"] for row in result.layers if row["role"] == "draft"}
    assert len(drafted) == 2
    assert not states & drafted


def test_states_that_vllm_ascend_cannot_align_are_served(unaligned: str) -> None:
    """It asserts that attention's keys can be made as many bytes as a state."""
    scenario = case(unaligned)
    result = engine.run(scenario)
    assert_greedy_tokens_of_reference(scenario, result)
    assert_drafts_are_the_drafts_own(scenario, result)


@pytest.mark.parametrize("drafted", [False, True], ids=["alone", "with a draft"])
def test_no_block_is_part_of_another_block(target: str, drafted: bool) -> None:
    """One block of one layer is filled and looked for in all others; alone, as stock has them."""
    scenario = case(target) if drafted else case(target, draft=None, record_drafts=False)
    arguments = {**scenario.engine_arguments(), "kv_cache_memory_bytes": 8 << 20}
    result = programs.answer_of(probes.caches, arguments)
    assert result["planned"]
    assert result["aliases"] == []
    assert result["counted_bytes"] <= result["plan_bytes"] <= result["counted_bytes"] + 8192
    if not drafted:
        assert result["caches"] == result["stock_caches"]

# SPDX-License-Identifier: Apache-2.0
"""Experts that vllm-ascend moves on model runner V1 (``dynamic_eplb``), beside a draft.

Those of the target's own drafting layers move with the target's, those of a draft model stay. With
weights of another expert, or the map of another rank, tokens of target or draft are wrong.
What is moved follows from how many tokens experts were given, by all passes of the draft, too.
"""

import re

import pytest

from tests.support.loop_judgement import assert_reference

pytestmark = pytest.mark.host("0.23")

OFTEN = {
    "dynamic_eplb": True,
    "expert_heat_collection_interval": 4,
    "algorithm_execution_interval": 3,
    "eplb_policy_type": 1,  # the default one moves none of so few experts
}
MOVED = re.compile(r"Layer (\d+) D2D transfer completed, updated_experts=[1-9]")
COUNTS = re.compile(r"experts of layer (\d+) were given (\d+) tokens, which are counted as (\d+)")
LAYERS = {"0", "1"}
"""The layer of the target that has experts, and the draft's; or two of a target."""
VARIABLES = {"DYNAMIC_EPLB": "true", "VLLM_LOGGING_LEVEL": "DEBUG"}
ENGINE = {
    "tensor_parallel_size": 2,
    "enable_expert_parallel": True,
    "additional_config": {"eplb_config": OFTEN},
}


def test_proposals_and_acceptance_are_the_references():
    result = assert_reference(
        "deepseek_v3_mtp",
        "deepseek_v3_mtp",
        "mtp",
        3,
        VARIABLES,
        engine={**ENGINE, "worker_extension_cls": "tests.support.counted_experts.Extension"},
    )
    assert set(MOVED.findall(result.log)) == LAYERS
    counts = COUNTS.findall(result.log)
    assert {layer for layer, given, _ in counts if int(given) > 0} == LAYERS
    assert all(given == counted for _, given, counted in counts)


def test_experts_of_a_draft_model_stay():
    """It has half as many as the target, of another size. Graphs of its passes keep them, too."""
    result = assert_reference(
        *("qwen3_moe", "gpt_oss_draft", "draft_model", 3, VARIABLES),
        engine=ENGINE,
        graphs="FULL_DECODE_ONLY",
        capture_sizes=(4, 8),
    )
    assert set(MOVED.findall(result.log)) == LAYERS
    assert result.draft_replays > len(result.proposals) // 3

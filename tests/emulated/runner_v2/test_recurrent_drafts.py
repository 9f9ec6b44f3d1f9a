# SPDX-License-Identifier: Apache-2.0
"""Drafts with recurrent layers on model runner V2: every proposal is that of plain loops."""

import pytest

from tests.support import hosts
from tests.support.loop_judgement import assert_reference
from tests.support.marks import needs_float32
from tests.support.stock import RUNNER_V2

hosts.skip_module_unless("vllm_ascend_0_30", "0.23.0 runs model runner V1 alone")
pytestmark = needs_float32


@pytest.mark.core
@pytest.mark.nightly(
    "other cases of it stay", cases=["*-granite4-3", "qwen3_moe-*", "qwen3_next-*"]
)
@pytest.mark.parametrize(
    ("target", "draft", "k"),
    [
        ("llama_target", "lfm2", 3),
        ("qwen3_moe", "qwen3_next_draft", 3),
        ("qwen3_next", "qwen3_next_draft", 3),
        ("qwen3_next", "granite4", 2),
        ("llama_target", "granite4", 3),  # Experts in the draft alone.
    ],
)
def test_proposals_and_acceptance_are_the_references(target: str, draft: str, k: int) -> None:
    assert_reference(target, draft, "draft_model", k, RUNNER_V2)


@pytest.mark.nightly("near to tests that stay")
@pytest.mark.parametrize(
    ("target", "draft", "k"), [("qwen3_moe", "qwen3_next_draft", 3), ("qwen3_next", "granite4", 2)]
)
def test_proposals_from_graphs_are_the_references(target: str, draft: str, k: int) -> None:
    result = assert_reference(
        target,
        draft,
        "draft_model",
        k,
        RUNNER_V2,
        graphs="FULL_DECODE_ONLY",
        capture_sizes=(k + 1, 2 * (k + 1)),
    )
    assert result.draft_replays > 5

# SPDX-License-Identifier: Apache-2.0
"""Method dspark: a block of masks, and a bias of each token by the one before, over KV groups.

The target has windows beside full attention, and the head's pages are of another size.
"""

import pytest

from tests.support import hosts
from tests.support.loop_judgement import (
    assert_every_draft_token,
    assert_reference,
    drafter_of,
)
from tests.support.marks import needs_float32
from tests.support.pairs import kv_groups, prompts_of, scenario
from tests.support.stock import RUNNER_V2
from tests.support.tiny_models import model_directory

hosts.skip_module_unless("vllm_ascend_0_30", "vLLM 0.23.0 knows no method dspark")

pytestmark = needs_float32
PAIR = ("gpt_oss", "gpt_oss_dspark", "dspark")


@pytest.mark.core(cases=["3"])
@pytest.mark.parametrize("k", [3, 5])
def test_proposals_and_acceptance_are_those_of_plain_loops(k):
    """Also with more tokens than the head was trained for."""
    sizes = (k + 1, 4 * (k + 1))
    result = assert_reference(*PAIR, k, graphs="FULL_DECODE_ONLY", capture_sizes=sizes)
    assert result.draft_replays > 5
    assert len(kv_groups(result, "target") | kv_groups(result, "draft")) > 1


def test_vllm_ascends_own_proposals_on_v2_over_planned_caches():
    """No speculator of ours serves the method there; caches, windows and backends are ours."""
    sizes = (4, 16)
    result = assert_reference(*PAIR, 3, RUNNER_V2, graphs="FULL_DECODE_ONLY", capture_sizes=sizes)
    assert result.draft_replays > 5
    drafting = [row["name"] for row in result.layers if row["role"] == "draft"]
    assert len(drafting) == 2, "options of the draft apply to no layer"


def test_every_draft_token_without_graphs_and_behind_prefix_hits():
    target, head, method = PAIR
    case = scenario(
        target,
        head,
        prompts=prompts_of(target, [265, 268, 5]),
        max_tokens=20,
        speculative={"method": method},
        repeats=2,
    )
    k = case.num_speculative_tokens
    drafter = drafter_of(model_directory(target), head, method, k)
    result = assert_every_draft_token(case, drafter, least=30 * k)
    assert max(result.cached_tokens) >= 128

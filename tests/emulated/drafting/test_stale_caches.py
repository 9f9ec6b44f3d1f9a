# SPDX-License-Identifier: Apache-2.0
"""A draft whose keys are stale for a while: writes of its caches are lost, the target's are not.

An MLA target writes its cache by another operator than a dense draft, so that writes of the draft
alone can be lost. The keys that lie there instead are those of requests before.
"""

import json
from dataclasses import replace

import pytest

from reliability.fault_cases import DRAFT_WRITES
from tests.support import engine, reference
from tests.support.pairs import (
    TIES,
    assert_drafts_are_the_drafts_own,
    assert_greedy_tokens_of_reference,
    scenario,
)

LOST = {"operator": DRAFT_WRITES, "launch": 40, "fault": "lost", "times": 80}

pytestmark = pytest.mark.skipif(
    engine.compared_dtype() != "float32",
    reason="a device loses no writes where it is asked to",
)


@pytest.mark.host("0.23", cases=["graphs"])
@pytest.mark.nightly("other cases of it stay", cases=["eager"])
@pytest.mark.parametrize("graphs", [None, "FULL_DECODE_ONLY"], ids=["eager", "graphs"])
def test_the_targets_tokens_stay_and_later_drafts_are_right(tmp_path, graphs):
    asked = tmp_path / "faults.json"
    asked.write_text(json.dumps([LOST]))
    case = scenario(
        "deepseek_v2_target",
        "gemma3_draft",
        graphs=graphs,
        repeats=2,
        engine={"enable_prefix_caching": False},
        environment={"EMULATED_NPU_FAULTS": str(asked)},
    )
    result = engine.run(case)
    assert result.log.count(f"asked-for lost at a launch of {DRAFT_WRITES}") == LOST["times"]
    assert_greedy_tokens_of_reference(case, result)
    contexts = [proposal.context for proposal in result.proposals]
    again = contexts.index(contexts[0], 1)
    near_tie, _ = TIES["float32"]
    assert reference.check_drafts(case.draft, result.proposals[:again], near_tie).wrong
    assert_drafts_are_the_drafts_own(case, replace(result, proposals=result.proposals[again:]))

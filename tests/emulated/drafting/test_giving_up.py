# SPDX-License-Identifier: Apache-2.0
"""``drafting.give_up_below``: a draft of which too little is accepted drafts no more.

The target's tokens stay Hugging Face's, through the steps that verify what was drafted before and
those that verify nothing.
"""

import pytest

from tests.support import engine
from tests.support.marks import needs_float32
from tests.support.pairs import assert_greedy, scenario
from tests.support.stock import each_runner
from tests.support.tiny_models import model_directory

K = 3
REQUESTS = 8
"""At once, as ``Scenario`` has it."""
JUDGED = 60
"""Proposals after which the draft is judged."""
VERIFIED = JUDGED + 3 * REQUESTS
"""Proposals that are verified at most: those of steps under way are, too."""
PASSES = K * JUDGED // 4
"""Passes at most, of steps in which four of eight requests verify on the average. Without an end
of drafting there are twice as many."""

pytestmark = needs_float32


def run(target, draft, below, runner=None, **fields):
    case = scenario(
        target,
        draft,
        **{
            "max_tokens": 32,
            "judged_after": JUDGED,
            "record_drafts": False,
            "mkv_ascend": {"drafting": {"give_up_below": below}},
            "environment": runner or {},
            "engine": {"async_scheduling": True},
            **fields,
        },
    )
    return case, engine.run(case)


def assert_targets_tokens(case, result, reference):
    assert_greedy(model_directory(reference), case.prompts, result.tokens, case.max_tokens)


@pytest.mark.host("0.23", cases=["*-graphs-v1", "groups-v1", "states-v1"])
@pytest.mark.nightly(
    "other cases of it stay", cases=["*-graphs-v2", "groups-v2", "states-v2", "synchronous-v1"]
)
@each_runner
@pytest.mark.parametrize(
    ("target", "draft", "reference", "fields"),
    [
        pytest.param("gemma3", "gemma3_draft", "gemma3", {}, id="groups"),
        pytest.param(
            "qwen3_next_mtp",
            "qwen3_next_mtp",
            "qwen3_next",
            {"speculative": {"method": "mtp"}},
            id="states",
        ),
        pytest.param(
            "llama_target",
            "lfm2",
            "llama_target",
            {"graphs": "FULL_AND_PIECEWISE", "capture_sizes": (4, 8, 16, 32)},
            id="states-of-the-draft-in-graphs",
        ),
        pytest.param(
            "deepseek_v2_target",
            "deepseek_v2_eagle3",
            "deepseek_v2_target",
            {"speculative": {"method": "eagle3"}, "engine": {"async_scheduling": False}},
            id="synchronous",
        ),
    ],
)
def test_nothing_is_drafted_or_verified_any_more(target, draft, reference, fields, runner):
    case, result = run(target, draft, 0.99, runner, **fields)
    assert_targets_tokens(case, result, reference)
    assert result.log.count("The draft is given up: of its last 60 proposals") == 1
    assert JUDGED <= result.num_drafts <= VERIFIED
    assert result.draft_passes <= PASSES


@pytest.mark.host("0.23", cases=["v1"])
@each_runner
def test_whole_steps_are_replayed_from_graphs_all_the_same(runner):
    sizes = (4, 8, 16, 32)
    graphs = {"graphs": "FULL_DECODE_ONLY", "capture_sizes": sizes}
    case, result = run("gemma3", "gemma3_draft", 0.99, runner, **graphs)
    assert_targets_tokens(case, result, "gemma3")
    assert "The draft is given up" in result.log
    # Verified, though nobody drafted them.
    assert result.num_drafts > 2 * VERIFIED
    assert 0 < K * result.draft_replays <= result.draft_passes <= PASSES
    assert result.target_replays > 2 * VERIFIED // REQUESTS


@pytest.mark.nightly("a draft that is given up stays")
@each_runner
def test_a_draft_that_is_accepted_often_enough_goes_on(runner):
    case, result = run("gemma3", "gemma3_draft", 0.01, runner)
    assert_targets_tokens(case, result, "gemma3")
    assert "The draft is given up" not in result.log
    assert result.num_drafts > VERIFIED
    assert result.draft_passes > 2 * PASSES

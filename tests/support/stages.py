# SPDX-License-Identifier: Apache-2.0
"""Drafts behind layers that lie on several pipeline stages, judged on any model runner."""

from __future__ import annotations

from collections.abc import Mapping

from tests.support import engine
from tests.support.loop_judgement import assert_reference
from tests.support.pairs import (
    run_judged,
)

STAGES = {"pipeline_parallel_size": 2}
K = 3


def judged_head_on_both_stages(
    method: str, graphs: str | None, environment: Mapping[str, str]
) -> engine.Result:
    """A head of ``method`` over gpt-oss, whose four layers lie on two stages.

    Its keys are in a KV group of which the first stage has no layer.
    """
    result = assert_reference(
        "gpt_oss",
        f"gpt_oss_{method}",
        method,
        K,
        environment,
        engine=STAGES,
        graphs=graphs,
        traced=graphs == "FULL_AND_PIECEWISE",
    )
    assert_both_give_states(result.log)
    assert (result.draft_replays > 0) == (graphs is not None)
    return result


def assert_both_give_states(log: str) -> None:
    """The states at depths 1 to 3 of gpt-oss."""
    assert "this stage gives those at depths [1, 2], and is sent []" in log
    assert "this stage gives those at depths [3], and is sent [1, 2]" in log


def judged_stage_in_between(environment: Mapping[str, str]) -> engine.Result:
    """A head over three stages, in graphs. Of the target's four layers the second has two."""
    result = assert_reference(
        "gemma3",
        "gemma3_eagle3",
        "eagle3",
        K,
        environment,
        engine={"pipeline_parallel_size": 3},
        graphs="FULL_DECODE_ONLY",
    )
    assert "this stage gives those at depths [1], and is sent []" in result.log
    assert "this stage gives those at depths [2, 3], and is sent [1]" in result.log
    assert "this stage gives those at depths [], and is sent [1, 2, 3]" in result.log
    return result


def judged_states(case: engine.Scenario) -> engine.Result:
    """Tokens and each draft token are Hugging Face's, some accepted and some not."""
    result = run_judged(case)
    assert 0 < result.num_accepted < result.num_draft_tokens
    assert (result.draft_replays > 0) == (case.graphs is not None)
    return result

# SPDX-License-Identifier: Apache-2.0
"""What `python -m reliability pairs` sees, of random models and a decoding in plain loops."""

from dataclasses import replace
from pathlib import Path

import pytest

from reliability.pair_judging import Judge, accepted_of, looked_up
from reliability.random_models import LEAST_POWER, write_random_model
from tests.support.engine import Result, Scenario
from tests.support.recorded_proposals import VerifyStep
from tests.support.reference import DraftProposal
from tests.support.speculation import DraftModel, speculate

K, TOKENS = 3, 12
PROMPT = list(range(40, 60))


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    return [
        write_random_model(folder / family, family, "unit") for family in ("llama", "starcoder2")
    ]


@pytest.fixture(scope="module")
def run(models):
    """What an engine without a fault does: its scenario and its result."""
    target, draft = models
    made = speculate(Path(target.folder), DraftModel(Path(draft.folder)), PROMPT, K, TOKENS)
    whole = [*PROMPT, *made.tokens]
    steps = [VerifyStep(PROMPT, [], made.tokens[:1])]
    for proposal, after in zip(made.proposals, [*made.proposals[1:], None], strict=True):
        length = len(proposal.context)
        end = len(after.context) if after else length + 1
        steps.append(VerifyStep(proposal.context, proposal.tokens, whole[length:end]))
    scenario = Scenario(
        model=target.folder,
        draft=draft.folder,
        num_speculative_tokens=K,
        prompts=[PROMPT],
        max_tokens=TOKENS,
        engine={"max_model_len": 64},
        record_steps=True,
    )
    # The last step is cut by the number of tokens: an engine's is not, and is left out here.
    steps.pop()
    counts = [sum(len(step.sampled) > position + 1 for step in steps) for position in range(K)]
    return scenario, Result(
        tokens=[made.tokens], proposals=made.proposals, steps=steps, accepted_per_position=counts
    )


def judged(models, scenario, result):
    target, draft = models
    gap = target.gaps["float32"], draft.gaps["float32"]
    return Judge(Path(target.folder), gap[0], Path(draft.folder), gap[1]).judge(scenario, result)


def test_a_run_without_a_fault_is_right_and_nearly_all_of_it_is_judged(models, run):
    assert min(model.power for model in models) >= LEAST_POWER
    found = judged(models, *run)
    assert found.problems == []
    assert found.judged["target"] >= TOKENS - 2
    assert found.judged["draft"] >= K * len(run[1].proposals) - 4
    assert sum(found.ties.values()) <= 6


def other(token: int) -> int:
    return (token + 1) % 256


def test_a_wrong_token_of_the_target(models, run):
    scenario, result = run
    tokens = [[*result.tokens[0][:5], other(result.tokens[0][5]), *result.tokens[0][6:]]]
    assert judged(models, scenario, replace(result, tokens=tokens)).wrong["target"] == 1


def test_a_wrong_token_of_the_draft(models, run):
    scenario, result = run
    first, *rest = result.proposals
    wrong = DraftProposal(first.context, [*first.tokens[:2], other(first.tokens[2])])
    assert judged(models, scenario, replace(result, proposals=[wrong, *rest])).wrong == {"draft": 1}


def test_a_draft_that_is_kept_although_the_target_says_otherwise(models, run):
    scenario, result = run
    index, step = next(
        (index, step)
        for index, step in enumerate(result.steps)
        if len(step.sampled) - 1 < len(step.drafted)
    )
    kept = step.drafted[: len(step.sampled)]
    steps = [*result.steps]
    steps[index] = replace(step, sampled=[*kept, step.sampled[-1]])
    assert judged(models, scenario, replace(result, steps=steps)).wrong["acceptance"] >= 1


def test_a_draft_that_is_dropped_although_the_target_says_the_same(models, run):
    scenario, result = run
    index, step = next((i, step) for i, step in enumerate(result.steps) if len(step.sampled) > 1)
    steps = [*result.steps]
    steps[index] = replace(step, sampled=step.sampled[:1])
    # The step itself, and the counts of the run.
    assert judged(models, scenario, replace(result, steps=steps)).wrong == {"acceptance": 2}


def test_answers_that_end_too_early_or_past_a_stop(models, run):
    scenario, result = run
    short = replace(result, tokens=[result.tokens[0][:-1]])
    assert judged(models, scenario, short).wrong == {"lengths": 1}
    stopped = replace(scenario, sampling={"stop_token_ids": [result.tokens[0][4]]})
    assert judged(models, stopped, result).wrong == {"lengths": 1}


def test_drafts_that_are_looked_up():
    assert looked_up([1, 2, 3, 9, 1, 2, 3]) == [9, 1, 2, 3]
    assert looked_up([1, 2, 3]) == []
    assert accepted_of([1, 2, 3], [1, 2, 7]) == 2
    assert accepted_of([1, 2], [1, 2, 7]) == 2

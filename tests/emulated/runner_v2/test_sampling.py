# SPDX-License-Identifier: Apache-2.0
"""Drafts whose tokens are drawn at random, on model runner V2."""

import pytest

from tests.support import engine, hosts
from tests.support.pairs import scenario
from tests.support.sampled_pairs import DRAFT, assert_distributed_as_the_target_says
from tests.support.stages import STAGES
from tests.support.stock import RUNNER_V2

hosts.skip_module_unless("vllm_ascend_0_30", "0.23.0 runs model runner V1 alone")

SEEDS = list(range(12))


@pytest.mark.nightly(
    "other cases of it stay", cases=["*-greedy-FULL_DECODE_ONLY", "*-probabilistic-None", "lfm2-*"]
)
@pytest.mark.parametrize("graphs", [None, "FULL_DECODE_ONLY"])
@pytest.mark.parametrize(
    ("model", "method"),
    [("llama_target", "probabilistic"), ("llama_target", "greedy"), ("lfm2", "probabilistic")],
)
def test_a_model_that_drafts_for_itself_at_random_is_always_right(model, method, graphs):
    """Draft and target say the same of each token, so a token that the draft drew is accepted.

    Its most likely token is not, where the target's draw is another.
    """
    assert_always_right(model, method, graphs)


@pytest.mark.nightly("near to tests that stay")
@pytest.mark.parametrize("graphs", [None, "FULL_DECODE_ONLY"])
@pytest.mark.parametrize("method", ["probabilistic", "greedy"])
def test_over_pipeline_stages(method, graphs):
    """First stages are sent the tokens that the draft drew."""
    assert_always_right("llama_target", method, graphs, **STAGES)


def assert_always_right(model, method, graphs, **options):
    """``options``: of the engine."""
    case = scenario(
        model,
        model,
        speculative={"draft_sample_method": method},
        prompts=[[5, 6, 7, 8]] * len(SEEDS),
        seeds=SEEDS,
        sampling={"temperature": 1.2},
        max_tokens=16,
        record_drafts=False,
        graphs=graphs,
        capture_sizes=(16, 32),
        environment=RUNNER_V2,
        engine=options,
    )
    result = engine.run(case)
    assert result.num_drafts > len(SEEDS)
    everything = [result.num_drafts] * case.num_speculative_tokens
    assert (result.accepted_per_position == everything) == (method == "probabilistic")
    assert len({tuple(tokens) for tokens in result.tokens}) > len(SEEDS) // 2
    assert (result.draft_replays > 0) == (graphs is not None)


@pytest.mark.nightly("near to tests that stay")
@pytest.mark.parametrize("method", ["probabilistic", "greedy"])
def test_tokens_are_distributed_as_the_target_says(method):
    """A token that is accepted without the draft's true probability is drawn too often."""
    assert_distributed_as_the_target_says(
        DRAFT, speculative={"draft_sample_method": method}, environment=RUNNER_V2
    )

# SPDX-License-Identifier: Apache-2.0
"""Our drafts on model runner V2: every proposal is the one of plain Hugging Face loops."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest

from tests.support import engine, hosts, loop_judgement, proposal_costs, stock
from tests.support.loop_judgement import PAIRS, assert_reference
from tests.support.marks import needs_float32
from tests.support.pairs import (
    assert_drafts_are_the_drafts_own,
    assert_greedy_tokens_of_reference,
    run_judged,
    scenario,
    text_prompts,
)
from tests.support.proposal_costs import MAX_LAUNCHES, REPLAY, UPDATE
from tests.support.sampled_pairs import DRAFT, assert_distributed_as_the_target_says
from tests.support.stages import STAGES
from tests.support.stock import RUNNER_V2
from tests.support.tiny_models import model_directory

hosts.skip_module_unless("vllm_ascend_0_30", "0.23.0 runs model runner V1 alone")


@needs_float32
@pytest.mark.core
@pytest.mark.nightly(
    "other cases of it stay",
    cases=["*-2", "*-4", "*-5", "*-mtp-*", "granite4-*", "lfm2-*", "llama_target-*"],
)
@pytest.mark.parametrize(("target", "draft", "method", "k"), PAIRS)
def test_proposals_and_acceptance_are_the_references(target, draft, method, k):
    assert_reference(target, draft, method, k, RUNNER_V2)


@needs_float32
def test_a_target_whose_class_gives_no_states():
    assert_reference("gemma3", "gemma3_eagle3", "eagle3", 3, RUNNER_V2)


# Drafts over several ranks on model runner V2: every draft token is the draft's own.


@pytest.mark.core
@pytest.mark.nightly("other cases of it stay", cases=["eager"])
@pytest.mark.parametrize("graphs", [None, "FULL_DECODE_ONLY"], ids=["eager", "graphs"])
def test_two_ranks_of_tensor_parallelism(graphs):
    """The draft has two KV groups and another backend than the target."""
    case = scenario(
        "deepseek_v2_target",
        "gemma3_draft",
        prompts=text_prompts(model_directory("deepseek_v2_target"), 5)[2:],
        max_tokens=16,
        graphs=graphs,
        capture_sizes=(4, 12) if graphs else (),
        engine={"tensor_parallel_size": 2},
        environment=RUNNER_V2,
    )
    result = engine.run(case)
    assert "The draft reads 2 KV groups" in result.log
    assert_greedy_tokens_of_reference(case, result)
    assert_drafts_are_the_drafts_own(case, result)
    assert (result.draft_replays > 5) == bool(graphs)


# Drafts with recurrent layers on model runner V2: every proposal is that of plain loops.


@needs_float32
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
def test_recurrent_drafts_propose_as_the_references(target: str, draft: str, k: int) -> None:
    assert_reference(target, draft, "draft_model", k, RUNNER_V2)


@needs_float32
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


# Drafts in graphs on model runner V2: tokens and every draft token are those of eager mode.
#
# Graphs are captured for 1, 3 and 6 requests, so that batches are on, between and past these sizes.


def case_in_graphs(target, draft, k, method="draft_model"):
    return scenario(
        target,
        draft,
        num_speculative_tokens=k,
        speculative={"method": method},
        graphs="FULL_DECODE_ONLY",
        capture_sizes=tuple(requests * (k + 1) for requests in (1, 3, 6)),
        environment=RUNNER_V2,
    )


@pytest.mark.core
@pytest.mark.nightly("other cases of it stay", cases=["*-2", "llama_target-*"])
@pytest.mark.parametrize(
    ("target", "draft", "k"),
    [
        ("deepseek_v2_target", "deepseek_v2_draft", 3),  # MLA, another rotary base in the draft
        ("gemma3", "gemma3_draft", 2),  # both in several KV groups
        ("llama_target", "deepseek_v32_target", 3),  # sparse: lengths on the device
    ],
)
def test_independent_drafts(target, draft, k):
    case = case_in_graphs(target, draft, k)
    result = run_judged(case)
    assert result.draft_replays > 5


@pytest.mark.core
@pytest.mark.nightly("other cases of it stay", cases=["*-dflash-3", "*-mtp-*"])
@pytest.mark.parametrize(
    ("target", "draft", "method", "k"),
    [
        ("gpt_oss", "gpt_oss_eagle3", "eagle3", 3),  # sinks: an operator of their own
        ("deepseek_v3_mtp", "deepseek_v3_mtp", "mtp", 3),
        ("gpt_oss", "gpt_oss_dflash", "dflash", 3),  # a block of masks, in three KV groups
    ],
)
def test_heads_propose_as_in_eager_mode(target, draft, method, k):
    case = case_in_graphs(target, draft, k, method)
    replayed = engine.run(case)
    eager = engine.run(replace(case, graphs=None))
    assert replayed.tokens == eager.tokens
    assert replayed.accepted_per_position == eager.accepted_per_position
    assert by_context(replayed.proposals) == by_context(eager.proposals)
    assert replayed.draft_replays > 5


def by_context(proposals):
    return sorted((proposal.context, proposal.tokens) for proposal in proposals)


# Drafts whose tokens are drawn at random, on model runner V2.

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


# Experts that move between ranks while an engine runs (``--enable-eplb``), beside a draft.
#
# With weights of another expert, or the map of another rank, tokens of target or draft are wrong. A
# thread of vllm-ascend moves them while graphs are replayed, so one case has graphs.

OFTEN = {"policy": "stair", "window_size": 4, "step_interval": 6}
MOVED = re.compile(r"changed_layers=([1-9]\d*) rank_transfers=([1-9]\d*)")
"""vllm-ascend's words for a cycle of one model in which experts went to the other rank."""


@pytest.mark.core
@pytest.mark.nightly("other cases of it stay", cases=["*-None"])
@pytest.mark.parametrize(
    ("target", "draft", "method", "graphs"),
    [
        ("deepseek_v3_mtp", "deepseek_v3_mtp", "mtp", "FULL_DECODE_ONLY"),
        ("glm4_moe_wide_mtp", "glm4_moe_wide_mtp", "mtp", None),
        ("qwen3_next_mtp", "qwen3_next_mtp", "mtp", None),
        ("deepseek_v2_target", "deepseek_v2_eagle3", "eagle3", None),
    ],
)
def test_drafts_beside_moved_experts_propose_as_the_references(target, draft, method, graphs):
    result = assert_reference(
        target,
        draft,
        method,
        3,
        RUNNER_V2,
        engine={
            "tensor_parallel_size": 2,
            "enable_expert_parallel": True,
            "enable_eplb": True,
            "eplb_config": OFTEN,
        },
        graphs=graphs,
    )
    assert (result.draft_replays > 5) == bool(graphs)
    assert len(MOVED.findall(result.log)) > 1


# What a proposal costs on model runner V2, by exact count (``proposal_costs.py``).

probe = partial(proposal_costs.probe, max_tokens=24, variables=RUNNER_V2)


@pytest.fixture(scope="module")
def pair():
    """A target of one KV group; its draft uses that and one more."""
    return probe("llama_target", "gemma3", num_speculative_tokens=4)


@pytest.mark.core
def test_a_proposal_over_two_groups_is_a_handful_of_launches(pair):
    assert pair["proposals"]
    for row in pair["proposals"]:
        assert sum(row["launches"].values()) <= MAX_LAUNCHES, row
        assert row["launches"]["mkv_ascend::draft_plan"] == 1
        assert row["launches"]["mkv_ascend::expand_inputs"] == 1
        assert row["builds"] == 2
        assert row["host_reads"] + row["waited_for"] == 1


def test_the_targets_pass_builds_nothing_for_the_drafts_layers(pair):
    """The target's layers lie in one group, whatever is beside them."""
    for target in (probe("llama_target", None)["target"], pair["target"]):
        assert target["builds"] == target["passes"] > 0


@pytest.mark.core
def test_a_replayed_proposal_is_a_handful_of_launches_beside_its_graph():
    """For a draft of two groups, padded from 3 requests to 4."""
    rows = probe(
        "llama_target",
        "gemma3",
        num_speculative_tokens=3,
        graphs="FULL_DECODE_ONLY",
        capture_sizes=(16,),
    )["proposals"]
    replayed = [row for row in rows if REPLAY in row["launches"]]
    assert len(replayed) > 3
    for row in replayed:
        assert (row["host_reads"], row["waited_for"]) == (0, 1)
        assert row["launches"].pop(REPLAY) == 1
        row["launches"].pop(UPDATE)
        assert sum(row["launches"].values()) <= MAX_LAUNCHES, row


# Faults of model runner V2 of vllm-ascend without our plugin, which reports name.


@pytest.mark.nightly("near to tests that stay")
def test_later_passes_of_a_head_see_rejected_tokens() -> None:
    """Their lengths count rejected tokens, so the first pass alone is right. Tokens stay right."""
    outputs, result = loop_judgement.loops_and_engine(
        "llama_target", "llama_eagle3", "eagle3", 3, environment=stock.STOCK | stock.RUNNER_V2
    )
    assert result.tokens == [output.tokens for output in outputs]
    first, *later = loop_judgement.wrong_tokens(outputs, result, 3)
    assert first == 0
    assert sum(later) > 0


STEPS, LENGTHS = 3, [7, 9]
TABLES = {"draft.0": "blocks of one group", "draft.1": "blocks of another"}


def test_later_passes_give_all_layers_the_blocks_of_the_first_ones_group() -> None:
    """What it gives the graph of a head of two layers, in two KV groups, to update."""
    from vllm_ascend.worker.v2.spec_decode.autoregressive.speculator import (
        AscendAutoRegressiveSpeculator,
    )

    speculator = SimpleNamespace(
        use_dcp=False,
        input_batch=SimpleNamespace(num_reqs=len(LENGTHS), seq_lens_np=LENGTHS),
        num_speculative_steps=STEPS,
        max_model_len=512,
        draft_attn_layer_names=list(TABLES),
    )
    metadata = {
        layer: SimpleNamespace(
            block_tables=table, actual_seq_lengths_q=[1, 2], seq_lens_list=LENGTHS
        )
        for layer, table in TABLES.items()
    }
    passes = AscendAutoRegressiveSpeculator.build_fia_params(
        speculator, len(LENGTHS), metadata, False
    )
    assert [one["layer_name"] for one in passes] == list(TABLES) * (STEPS - 1)
    assert {one["block_table"] for one in passes} == {TABLES["draft.0"]}

# SPDX-License-Identifier: Apache-2.0
"""Drafts under data parallelism: a rank without requests runs the passes of the others along."""

import operator

import pytest

from tests.emulated.drafting import probes
from tests.support import engine, hosts, programs, reference
from tests.support.emulation import ON_EMULATOR
from tests.support.loop_judgement import REFERENCE_OF, drafter_of
from tests.support.pairs import TIES, assert_greedy, prompts_of, scenario, text_prompts
from tests.support.ports import free_port
from tests.support.stock import RUNNER_V2, each_runner
from tests.support.tiny_models import model_directory

# By round, prompts and new tokens of each rank: both are idle in turn, with batches of other sizes.
ROUNDS = (((4, 16), (1, 5)), ((1, 4), (2, 12)))


# Each step of a rank must be one of all ranks. Where stages take turns, an engine in the process of
# its ``LLM`` has steps that run nothing; one in a process of its own fills them up.
OVER_STAGES = {"pipeline_parallel_size": 2}
ENGINE_CORES = {"VLLM_ENABLE_V1_MULTIPROCESSING": "1"}


def run_ranks(case, texts, runner, *, traced=False, rounds=ROUNDS):
    """What each rank did in ``rounds``, with its own of ``texts``.

    ``traced``: models are, as vLLM does by default; tests leave it out, because it takes long.
    """
    arguments = {**case.engine_arguments(), "async_scheduling": False}
    if arguments.get("pipeline_parallel_size", 1) > 1:
        # Stages of model runner V2 are served with asynchronous scheduling alone.
        arguments["async_scheduling"] = engine.runs_v2(runner)
        runner = {**runner, **ENGINE_CORES}
    return programs.answer_of(
        probes.data_parallel,
        {
            "engine": arguments,
            "port": free_port(),
            "traced": traced,
            "ranks": [
                [
                    {"prompts": texts[rank:][: ranks[rank][0]], "max_tokens": ranks[rank][1]}
                    for ranks in rounds
                ]
                for rank in range(2)
            ],
        },
        runner,
    )


def run_and_judge(
    target,
    draft,
    method,
    groups,
    runner,
    graphs=None,
    *,
    traced=False,
    rounds=ROUNDS,
    lengths=(),
    longest=None,
    **options,
):
    """What each rank did; all tokens are the target's, all drafted ones the draft's own.

    ``lengths``: of the prompts, if not those of the standard ones. ``longest``: most tokens of a
    sequence of the draft; what it says of those behind them is not judged.
    """
    case = scenario(
        target,
        draft,
        speculative={"method": method} | ({"max_model_len": longest} if longest else {}),
        engine=options,
        graphs=graphs,
        capture_sizes=(4, 8, 16) if graphs else (),
    )
    name, k = REFERENCE_OF.get(target, target), case.num_speculative_tokens
    model = model_directory(name)
    texts = prompts_of(name, lengths) if lengths else text_prompts(model)[3:]
    drafter = drafter_of(model, draft, method, k)
    near_tie, _ = TIES[engine.compared_dtype()]
    results = run_ranks(case, texts, runner, traced=traced, rounds=rounds)
    for rank, result in enumerate(results):
        drafts = {row["kv_group"] for row in result["layers"] if row["role"] == "draft"}
        assert len(drafts) == groups
        for ranks, tokens in zip(rounds, result["tokens"], strict=True):
            count, max_tokens = ranks[rank]
            assert_greedy(model, texts[rank:][:count], tokens, max_tokens)
        proposals = [reference.DraftProposal(**proposal) for proposal in result["proposals"]]
        assert all(len(proposal.tokens) == k for proposal in proposals)
        if longest:
            proposals = [within(longest, proposal) for proposal in proposals]
        report = reference.judge(drafter.rows, proposals, near_tie)
        assert report.checked == sum(len(proposal.tokens) for proposal in proposals) > 5 * k
        assert not report.wrong, "\n".join(map(str, report.wrong[:5]))
    accepted = sum(sum(result["accepted"]) for result in results)
    assert accepted > sum(result["drafts"] for result in results) / 4
    return results


def within(longest, proposal):
    """The proposal without tokens behind one at which no sequence of the draft ends."""
    fitting = max(0, longest + 1 - len(proposal.context))
    return reference.DraftProposal(proposal.context, proposal.tokens[:fitting])


PAIRS = [
    ("gpt_oss", "gpt_oss_draft", "draft_model", 2),  # Experts: each pass is one of all ranks.
    ("gpt_oss", "gpt_oss_eagle3", "eagle3", 1),  # None: passes of a rank are its own.
    ("deepseek_v3_mtp", "deepseek_v3_mtp", "mtp", 1),  # Experts behind hidden states.
    ("gpt_oss", "gpt_oss_dflash", "dflash", 2),
]
# Experts and states: a rank without requests has no states to run a graph on. On 0.23.0 states and
# keys lie in groups of their own.
GROUPS_WITH_STATES = 2 if hosts.NAME == "vllm_ascend_0_23" else 1
WITH_STATES = ("qwen3_moe", "qwen3_next_draft", "draft_model", GROUPS_WITH_STATES)


@pytest.mark.nightly("in graphs it stays")
@each_runner
@pytest.mark.parametrize(("target", "draft", "method", "groups"), [*PAIRS, WITH_STATES])
def test_ranks_are_idle_in_turn(target, draft, method, groups, runner):
    run_and_judge(target, draft, method, groups, runner)


@pytest.mark.core(cases=["gpt_oss-gpt_oss_draft-*"])
@pytest.mark.host("0.23", cases=["*-draft_model-2-v1", "*-eagle3-1-v1"])
@pytest.mark.nightly("other cases of it stay", cases=["*-1-v2", "*-dflash-*", "*-mtp-*"])
@each_runner
@pytest.mark.parametrize(("target", "draft", "method", "groups"), PAIRS)
def test_ranks_are_idle_in_turn_in_graphs(target, draft, method, groups, runner):
    """Where the passes are one of all ranks, each replays a graph of one size, or none does."""
    results = run_and_judge(target, draft, method, groups, runner, "FULL_DECODE_ONLY")
    replays = [result["replays"] for result in results]
    assert min(replays) > 4
    # A rank without requests replays along where the draft has experts, and only there: elsewhere
    # each replay has a proposal of its own, and as many may be another rank's by chance.
    if method in ("draft_model", "mtp"):
        assert replays[0] == replays[1], replays
    else:
        proposals = [len(result["proposals"]) for result in results]
        assert all(map(operator.le, replays, proposals)), (replays, proposals)


@pytest.mark.nightly("experts in step on two ranks stay")
@each_runner
def test_experts_spread_over_the_ranks(runner):
    """Expert parallelism: each rank keeps half of the experts of target and draft."""
    draft, spread = PAIRS[0], {"enable_expert_parallel": True}
    results = run_and_judge(*draft, runner, "FULL_DECODE_ONLY", **spread)
    assert results[0]["replays"] == results[1]["replays"] > 4


# Rank 0 reaches the longest context, beside a busy rank and then beside one that is soon idle.
LONGEST = 128
UP_TO_THE_END = (((1, 28), (2, 24)), ((1, 28), (1, 2)))


@pytest.mark.host("0.23", cases=["*-v1"])
@pytest.mark.nightly("other cases of it stay", cases=["*-eager-*", "*-112-*", "*-mtp-*"])
@each_runner
@pytest.mark.parametrize("graphs", [None, "FULL_DECODE_ONLY"], ids=["eager", "graphs"])
@pytest.mark.parametrize(
    ("target", "draft", "method", "groups", "longest"),
    [(*PAIRS[0], LONGEST), (*PAIRS[0], 112), (*PAIRS[2], LONGEST)],
)
def test_ranks_draft_on_where_the_longest_context_ends(
    target, draft, method, groups, longest, graphs, runner
):
    """A rank that left out a proposal would leave the other one in an exchange with nobody.

    The draft's own longest context may end before the target's.
    """
    run_and_judge(
        target,
        draft,
        method,
        groups,
        runner,
        graphs,
        rounds=UP_TO_THE_END,
        lengths=(LONGEST - 28, 60, 21),
        longest=longest,
        max_model_len=LONGEST,
        max_num_batched_tokens=32,
        enable_expert_parallel=True,
    )


@pytest.mark.nightly("on V1 they reached nobody before it was mended, by chance", cases=["v1"])
@pytest.mark.skipif(not ON_EMULATOR, reason="has memory hold NaN that nothing was written to")
@each_runner
def test_rows_of_no_request_reach_nobody(runner):
    """Ranks run as many rows in each pass; what attention would not write reaches other ranks."""
    memory = {"EMULATED_NPU_UNWRITTEN": "nan"}
    run_and_judge(*PAIRS[0], {**runner, **memory}, enable_expert_parallel=True)


@pytest.mark.nightly("experts in step on two ranks stay")
@each_runner
def test_experts_with_states_run_eagerly_beside_graphs(runner):
    results = run_and_judge(*WITH_STATES, runner, "FULL_DECODE_ONLY")
    assert [result["replays"] for result in results] == [0, 0]


# vLLM 0.23.0 does not load GPT-OSS with its experts spread over ranks of several stages: it counts
# them by a rank's number in the world.
STAGED = (
    (*PAIRS[2], None) if hosts.NAME == "vllm_ascend_0_23" else (*PAIRS[0], "FULL_DECODE_ONLY"),
)


@pytest.mark.nightly("two engine cores and four workers take more than a minute")
@pytest.mark.parametrize(("target", "draft", "method", "groups", "graphs"), STAGED)
def test_ranks_of_two_stages_are_idle_in_turn(target, draft, method, groups, graphs):
    """Model runner V1. Stages hold two batches at once, so a busy rank has idle steps, too."""
    spread = {"enable_expert_parallel": True}
    results = run_and_judge(target, draft, method, groups, {}, graphs, **OVER_STAGES, **spread)
    assert all((result["replays"] > 4) == (graphs is not None) for result in results)


@hosts.only_on("vllm_ascend_0_30", "0.23.0 runs model runner V1 alone")
def test_ranks_of_v2_start_where_vllm_traces():
    """A traced draft takes no row more than `max_num_batched_tokens`."""
    results = run_and_judge(*PAIRS[0], RUNNER_V2, "FULL_DECODE_ONLY", traced=True)
    assert all(result["replays"] > 4 for result in results)


@hosts.only_on("vllm_ascend_0_30", "0.23.0 runs model runner V1 alone")
def test_stages_of_v2_draft_as_those_of_v1_do():
    """They are served with asynchronous scheduling alone, which records no draft tokens."""
    target, draft, method, _ = PAIRS[0]
    case = scenario(
        target,
        draft,
        speculative={"method": method},
        engine={**OVER_STAGES, "enable_expert_parallel": True},
        graphs="FULL_DECODE_ONLY",
        capture_sizes=(4, 8, 16),
    )
    model = model_directory(target)
    texts = text_prompts(model)[3:]
    of_v2, of_v1 = (run_ranks(case, texts, runner) for runner in (RUNNER_V2, {}))
    for rank, (result, expected) in enumerate(zip(of_v2, of_v1, strict=True)):
        for ranks, tokens in zip(ROUNDS, result["tokens"], strict=True):
            count, max_tokens = ranks[rank]
            assert_greedy(model, texts[rank:][:count], tokens, max_tokens)
        assert result["accepted"] == expected["accepted"]
        assert result["drafts"] == expected["drafts"]
        assert result["replays"] > 4


SPLIT_HEAD = {"finegrained_tp_config": {"lmhead_tensor_parallel_size": 2}}
"""Each rank keeps half of the head's vocabulary, and has the other half from the other rank."""


@pytest.mark.host("0.23")
def test_a_rank_drafts_on_with_a_split_head_while_the_other_is_idle():
    case = scenario("qwen3_moe", "qwen3_moe", record_drafts=False)
    texts = text_prompts(case.model)
    ranks = ((4, 24), (1, 5))
    asked = {
        "engine": {
            **case.engine_arguments(),
            "async_scheduling": False,
            "additional_config": SPLIT_HEAD,
        },
        "port": free_port(),
        "ranks": [
            [{"prompts": texts[:count], "max_tokens": max_tokens}] for count, max_tokens in ranks
        ],
    }
    results = programs.answer_of(probes.data_parallel, asked)
    for result, (count, max_tokens) in zip(results, ranks, strict=True):
        assert_greedy(case.model, texts[:count], result["tokens"][0], max_tokens)
        assert result["accepted"] == [result["drafts"]] * case.num_speculative_tokens

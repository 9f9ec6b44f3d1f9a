# SPDX-License-Identifier: Apache-2.0
"""K by batch size on model runner V2: each K in use has its graphs, of drafts and verify steps."""

from __future__ import annotations

import inspect
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.following_loads import LAUNCHES, OF_EAGLE3
from tests.emulated import probes
from tests.support import hosts, programs, reference, stock
from tests.support.loop_judgement import REFERENCE_OF, drafter_of
from tests.support.pairs import assert_greedy, scenario, text_prompts
from tests.support.proposal_costs import REPLAY, UPDATE
from tests.support.stock import RUNNER_V2
from tests.support.tiny_models import model_directory

hosts.skip_module_unless("vllm_ascend_0_30", "0.23.0 has no K by batch size")

RUNNER_V1 = {"EMULATED_NPU_TRITON": "1"}
LAYERS = 2
"""Layers of the draft."""


def run_load(
    target: str,
    draft: str,
    method: str,
    table: list[list[int]],
    requests: int,
    graphs: str | None = "FULL_DECODE_ONLY",
    environment: Mapping[str, str] = RUNNER_V2,
    sizes: tuple[int, ...] = (),
    **arguments: Any,
) -> dict[str, Any]:
    """Run a load of 1 -> ``requests`` -> 1 with K of ``table``; tokens are Hugging Face's.

    ``sizes``: of graphs, in tokens; none: some for each K.
    """
    most = max(tokens for *_, tokens in table)
    numbers = (1, 2, 3, 5, requests)
    every = {number * (tokens + 1) for number in numbers for *_, tokens in table}
    case = scenario(
        target,
        draft,
        prompts=text_prompts(model_directory(target), requests)
        if requests <= 8
        else (text_prompts(model_directory(target)) * requests)[:requests],
        num_speculative_tokens=most,
        speculative={"method": method, "num_speculative_tokens_per_batch_size": table},
        graphs=graphs,
        capture_sizes=sizes or tuple(sorted(every)),
        record_drafts=not arguments.get("async_scheduling", False),
        engine={"max_num_seqs": requests, "max_num_batched_tokens": 2048, **arguments},
    )
    lengths = [96, *(6 + 5 * (index % 4) for index in range(1, requests))]
    request = {
        "engine": case.engine_arguments(),
        "prompts": case.prompts,
        "lengths": lengths,
        "record_drafts": case.record_drafts,
    }
    result: dict[str, Any] = programs.answer_of(probes.load, request, environment)
    judge = reference_of(target)
    for prompt, tokens, length in zip(case.prompts, result["tokens"], lengths, strict=True):
        assert_greedy(judge, [prompt], [tokens], length)
    return result


def reference_of(target: str) -> Path:
    """The checkpoint that transformers judges a target's tokens by.

    It reads no ``scoring_func``: it would route DeepSeek-V2's experts as DeepSeek-V3's.
    """
    return model_directory(REFERENCE_OF.get(target, target))


def assert_all_is_replayed(result: dict[str, Any], table: list[list[int]], requests: int) -> None:
    """Each step without a prompt: its verification, of one K, and its proposal, of this one."""
    counts = {n: k for first, last, k in table for n in range(first, last + 1)}
    verifying = [step for step in result["steps"] if not step["prompts"]]
    sizes = [step["requests"] for step in verifying]
    assert (sizes[0], max(sizes), sizes[-1]) == (1, requests, 1)
    seen = {step["rows"][0] - 1 for step in verifying}
    assert seen == set(counts.values())
    for before, step in zip([None, *result["steps"]], result["steps"], strict=False):
        if step["prompts"] or before is None:
            continue
        assert set(step["rows"]) == {counts[before["requests"]] + 1}, (before, step)
        assert (step["verify_replays"], step["draft_replays"]) == (1, 1), step


Costs = dict[int, tuple[int, int]]
"""K -> launches of a replayed proposal beside its graph, and updates of launches in the graph."""
OF_RECURRENT_DRAFT = {3: (8, 4), 1: (8, 2)}
"""One layer of attention is updated in each pass, and there is a pass more than tokens."""
COSTS: Mapping[tuple[str, str], Costs] = {
    ("llama_target", "deepseek_v2_draft"): {3: (5, 6), 1: (5, 2)},
    ("deepseek_v2_target", "llama_draft"): {3: (5, 6), 1: (5, 2)},
    ("deepseek_v32_target", "llama_draft"): {3: (5, 6), 1: (5, 2)},
    ("qwen3_next", "llama_draft"): {3: (5, 6), 1: (5, 2), 0: (5, 2)},
    # One layer; hidden states are copied, and those of eagle3 joined before.
    ("deepseek_v3_mtp", "deepseek_v3_mtp"): {3: (6, 3), 1: (6, 1)},
    ("qwen3_next_mtp", "qwen3_next_mtp"): {3: (6, 3), 1: (6, 1)},
    ("gpt_oss", "gpt_oss_eagle3"): {3: (OF_EAGLE3, 3), 1: (OF_EAGLE3, 1)},
    ("gpt_oss", "gpt_oss_dflash"): {3: (9, 2), 1: (9, 2)},
    ("qwen3_moe", "qwen3_next_draft"): OF_RECURRENT_DRAFT,
    ("llama_target", "lfm2"): {3: (8, 4), 0: (8, 1)},
    ("qwen3_next", "qwen3_next"): OF_RECURRENT_DRAFT,
    ("granite4", "granite4"): OF_RECURRENT_DRAFT,
    ("lfm2", "lfm2"): OF_RECURRENT_DRAFT,
}
"""Target and draft -> what their proposals cost."""


def launches_by_count(result: dict[str, Any], table: list[list[int]]) -> Costs:
    """What each replayed proposal costs: the same for all of one K."""
    counts = {n: k for first, last, k in table for n in range(first, last + 1)}
    found: dict[int, set[tuple[int, int]]] = defaultdict(set)
    for step in result["steps"]:
        if step["draft_replays"]:
            launches = dict(step["launches"])
            assert launches.pop(REPLAY) == 1
            updates = launches.pop(UPDATE, 0)
            found[counts[step["requests"]]].add((sum(launches.values()), updates))
    assert all(len(costs) == 1 for costs in found.values()), found
    return {count: costs.pop() for count, costs in found.items()}


def assert_drafts_own(
    target: str, draft: str, method: str, table: list[list[int]], proposals: list[Any]
) -> None:
    """Each token is what the draft says in plain loops, and each K of ``table`` was drafted."""
    made = [reference.DraftProposal(*proposal) for proposal in proposals]
    counts = {tokens for *_, tokens in table}
    assert {len(proposal.tokens) for proposal in made} == counts
    drafter = drafter_of(reference_of(target), draft, method, max(counts))
    report = reference.judge(drafter.rows, made)
    assert report.checked == sum(len(proposal.tokens) for proposal in made)
    assert not report.wrong, report.wrong[:5]


def test_a_load_of_32_with_asynchronous_scheduling() -> None:
    table = [[1, 4, 4], [5, 16, 2], [17, 32, 1]]
    followed = run_load("gemma3", "gemma3_draft", "draft_model", table, 32, async_scheduling=True)
    assert_all_is_replayed(followed, table, 32)


TABLE = [[1, 2, 4], [3, 5, 2], [6, 8, 0]]


@pytest.fixture(scope="module")
def followed() -> dict[str, Any]:
    return run_load("gemma3", "gemma3_draft", "draft_model", TABLE, 8, async_scheduling=False)


def test_each_number_of_drafts_is_replayed(followed: dict[str, Any]) -> None:
    assert_all_is_replayed(followed, TABLE, 8)


@pytest.mark.core
def test_each_draft_token_is_the_drafts_own(followed: dict[str, Any]) -> None:
    assert_drafts_own("gemma3", "gemma3_draft", "draft_model", TABLE, followed["proposals"])


def test_launches_follow_the_number_of_drafts(followed: dict[str, Any]) -> None:
    """A launch of attention is updated for each layer and pass; the first pass runs in any case."""
    found = launches_by_count(followed, TABLE)
    assert found == {
        0: (LAUNCHES, LAYERS),
        2: (LAUNCHES, 2 * LAYERS),
        4: (LAUNCHES, 4 * LAYERS),
    }


def test_an_eager_proposal_has_as_many_passes_as_tokens() -> None:
    """Its tokens come first of those that vLLM keeps; a graph leaves old ones behind them."""
    table = [[1, 2, 4], [3, 4, 2]]
    followed = run_load(
        "gemma3", "gemma3_draft", "draft_model", table, 4, None, async_scheduling=False
    )
    assert not any(step["draft_replays"] for step in followed["steps"])
    assert_drafts_own("gemma3", "gemma3_draft", "draft_model", table, followed["proposals"])


@pytest.mark.nightly("near to tests that stay")
@pytest.mark.parametrize(
    ("target", "draft", "method"),
    [
        ("llama_target", "deepseek_v2_draft", "draft_model"),  # MLA in the draft
        ("deepseek_v2_target", "llama_draft", "draft_model"),  # MLA in the target
        ("deepseek_v3_mtp", "deepseek_v3_mtp", "mtp"),  # MLA in both
        ("deepseek_v32_target", "llama_draft", "draft_model"),  # sparse attention in the target
        ("gpt_oss", "gpt_oss_eagle3", "eagle3"),  # sinks
        ("gpt_oss", "gpt_oss_dflash", "dflash"),  # all tokens in one pass
    ],
)
def test_sizes_in_tokens_of_two_numbers_may_be_one(target: str, draft: str, method: str) -> None:
    """Four tokens are a request of K = 3 or two of K = 1."""
    table = [[1, 2, 3], [3, 4, 1]]
    followed = run_load(target, draft, method, table, 4, async_scheduling=False)
    assert_all_is_replayed(followed, table, 4)
    assert_drafts_own(target, draft, method, table, followed["proposals"])
    assert launches_by_count(followed, table) == COSTS[target, draft]


@pytest.mark.nightly("near to tests that stay")
@pytest.mark.parametrize(
    ("target", "draft", "fewest"),
    [
        ("qwen3_moe", "qwen3_next_draft", 1),
        ("llama_target", "lfm2", 0),
    ],
)
def test_drafts_with_recurrent_layers(target: str, draft: str, fewest: int) -> None:
    """Their states are committed by what was verified; of no tokens the first pass commits one."""
    table = [[1, 2, 3], [3, 4, fewest]]
    followed = run_load(target, draft, "draft_model", table, 4, async_scheduling=False)
    assert_all_is_replayed(followed, table, 4)
    assert_drafts_own(target, draft, "draft_model", table, followed["proposals"])
    assert launches_by_count(followed, table) == COSTS[target, draft]


def assert_fewer_are_verified_than_were_accepted(proposals: list[Any]) -> None:
    """Somewhere a proposal of one token stands behind four accepted ones of a proposal of three."""
    made = {tuple(context): len(tokens) for context, tokens in proposals}
    behind = {context[:-4]: count for context, count in made.items()}
    assert any(count == 3 and behind.get(context) == 1 for context, count in made.items())


@pytest.mark.nightly("other cases of it stay", cases=["gdn", "v1"])
@pytest.mark.parametrize(
    ("model", "graphs", "environment"),
    [
        ("qwen3_next", "FULL_DECODE_ONLY", RUNNER_V2),
        ("granite4", "FULL_DECODE_ONLY", RUNNER_V2),
        ("lfm2", "FULL_DECODE_ONLY", RUNNER_V2),
        ("qwen3_next", None, RUNNER_V1),  # vLLM has no full graphs of this there
    ],
    ids=["gdn", "mamba2", "convolutions", "v1"],
)
def test_states_go_on_from_what_was_accepted(
    model: str, graphs: str | None, environment: Mapping[str, str]
) -> None:
    """A model that drafts for itself: the step behind four accepted tokens verifies two."""
    table = [[1, 1, 3], [2, 4, 1]]
    followed = run_load(
        model, model, "draft_model", table, 4, graphs, environment, async_scheduling=False
    )
    if graphs is not None:
        assert_all_is_replayed(followed, table, 4)
        assert launches_by_count(followed, table) == COSTS[model, model]
    assert_drafts_own(model, model, "draft_model", table, followed["proposals"])
    assert_fewer_are_verified_than_were_accepted(followed["proposals"])


@pytest.mark.nightly("near to tests that stay")
@pytest.mark.parametrize(
    ("target", "draft", "method", "table", "sizes"),
    [
        ("qwen3_next", "llama_draft", "draft_model", [[1, 2, 3], [3, 5, 1], [6, 8, 0]], (4, 8, 10)),
        ("qwen3_next_mtp", "qwen3_next_mtp", "mtp", [[1, 2, 3], [3, 4, 1]], (4, 8)),
    ],
    ids=["llama_draft", "mtp"],
)
def test_targets_with_gated_delta_nets(
    target: str, draft: str, method: str, table: list[list[int]], sizes: tuple[int, ...]
) -> None:
    """The largest graphs of a small K: padded to four tokens a request they exceed any graph."""
    requests = table[-1][1]
    followed = run_load(target, draft, method, table, requests, sizes=sizes, async_scheduling=False)
    assert_all_is_replayed(followed, table, requests)
    assert_drafts_own(target, draft, method, table, followed["proposals"])
    assert launches_by_count(followed, table) == COSTS[target, draft]


def graphs_of_loads(init: Any, table: list[list[int]], most: int, sizes: list[int]) -> Any:
    """vLLM's manager of graphs, as far as it chooses one, with each graph said to be captured."""
    from vllm.config import CUDAGraphMode
    from vllm.v1.worker.gpu.cudagraph_utils import CudaGraphManager

    manager = CudaGraphManager.__new__(CudaGraphManager)
    tokens = max(count for *_, count in table)
    speculative = SimpleNamespace(
        uses_dynamic_speculative_decoding=lambda: True,
        num_speculative_tokens_per_batch_size=table,
    )
    manager.__dict__.update(
        vllm_config=SimpleNamespace(
            speculative_config=speculative,
            num_speculative_tokens=tokens,
            cache_config=SimpleNamespace(use_kda_recoverssm=False),
        ),
        compilation_config=SimpleNamespace(
            cudagraph_capture_sizes=sizes, max_cudagraph_capture_size=max(sizes)
        ),
        cudagraph_mode=CUDAGraphMode.FULL_DECODE_ONLY,
        max_num_reqs=most,
        decode_query_len=tokens + 1,
        varlen_decode=False,
        lora_capture_cases=[0],
        ubatch_runner=None,
        _capture_descs={},
        _candidates={},
        _graphs_captured=True,
        _resolve_effective_loras=lambda loras: loras,
    )
    init(manager)
    return manager


@pytest.mark.core
@pytest.mark.parametrize(
    ("table", "most", "sizes", "eager_in_stock"),
    [
        (
            [[1, 4, 4], [5, 16, 2], [17, 32, 1]],
            32,
            [5, 10, 20, 48, 64, 96, 160],
            {(5, 2), (6, 2), (25, 1)},
        ),
        # Of K = 0 there are graphs of any size, one token less than the step has among them.
        ([[1, 4, 2], [5, 8, 0]], 8, [5, 7, 8, 12], {(1, 2), (6, 0)}),
    ],
    ids=["drafts", "none of many requests"],
)
def test_a_step_finds_the_graph_of_its_own_number(
    table: list[list[int]], most: int, sizes: list[int], eager_in_stock: set[tuple[int, int]]
) -> None:
    """Stock looks at graphs of the next size alone, which may be of another K."""
    from vllm.config import CUDAGraphMode
    from vllm.v1.worker.gpu.cudagraph_utils import CudaGraphManager

    from mkv_ascend.adapters.vllm_ascend_0_30.v2.patches import graphs as ours

    stock_init = inspect.unwrap(CudaGraphManager._init_candidates)

    def our_init(manager: Any) -> None:
        (offer,) = ours.offer_graphs_of_each_count.functions.values()
        offer(stock_init, manager)

    eager: dict[str, set[tuple[int, int]]] = {}
    for name, init in (("stock", stock_init), ("ours", our_init)):
        manager = graphs_of_loads(init, table, most, sizes)
        steps = [(n, count) for first, last, count in table for n in range(first, last + 1)]
        found = {
            (n, count): manager.dispatch(n, n * (count + 1), count + 1, 0) for n, count in steps
        }
        none = CUDAGraphMode.NONE
        eager[name] = {step for step, graph in found.items() if graph.cg_mode is none}
        for (n, count), graph in found.items():
            if graph.cg_mode is not none:
                assert graph.uniform_token_count == count + 1
                assert graph.num_reqs >= n
    assert eager == {"stock": eager_in_stock, "ours": set()}


@pytest.mark.nightly("near to tests that stay")
def test_stock_verifies_one_number_without_asynchrony() -> None:
    """Its runner names K of the configuration to the scheduler, whatever the batch."""
    _, result = stock.run(
        "llama_target",
        "llama_eagle3",
        v2=True,
        speculative={
            "method": "eagle3",
            "num_speculative_tokens_per_batch_size": [[1, 1, 3], [2, 8, 1]],
        },
        num_speculative_tokens=3,
    )
    assert {len(proposal.tokens) for proposal in result.proposals} == {3}

# SPDX-License-Identifier: Apache-2.0
"""Small parts of the adapter of model runner V2, each against its own rule. No engine."""

from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from tests.support import hosts
from tests.support.draft_facts import loaded

hosts.skip_module_unless("vllm_ascend_0_30", "0.23.0 runs model runner V1 alone")

import vllm_ascend.ops  # noqa: E402, F401  before the rest of it: its modules import in a circle
from vllm.v1.attention.backends.mamba2_attn import Mamba2AttentionMetadataBuilder  # noqa: E402
from vllm.v1.kv_cache_interface import FullAttentionSpec, MambaSpec  # noqa: E402
from vllm.v1.worker.gpu import model_runner  # noqa: E402
from vllm.v1.worker.utils import AttentionGroup  # noqa: E402

from mkv_ascend.adapters.vllm_ascend_0_30.v2.drafting import speculator as drafts  # noqa: E402
from mkv_ascend.adapters.vllm_ascend_0_30.v2.drafting import target_output  # noqa: E402
from mkv_ascend.adapters.vllm_ascend_0_30.v2.drafting.loading import (  # noqa: E402
    with_kinds_of_all_layers,
)
from mkv_ascend.adapters.vllm_ascend_0_30.v2.drafting.speculator import (  # noqa: E402
    MkvSpeculator,
)
from mkv_ascend.adapters.vllm_ascend_0_30.v2.patches import graphs as target_graphs  # noqa: E402
from mkv_ascend.adapters.vllm_ascend_0_30.v2.patches import recurrent, stages  # noqa: E402
from mkv_ascend.adapters.vllm_ascend_0_30.v2.patches.recurrent import tokens_on_the_device  # noqa: E402
from mkv_ascend.adapters.vllm_ascend_0_30.v2.planned_caches import without_layers  # noqa: E402
from mkv_ascend.adapters.vllm_ascend_0_30.v2.runner import AdaptersOfRows  # noqa: E402
from mkv_ascend.drafting.counts import DraftCounts  # noqa: E402
from mkv_ascend.drafting.draft import DraftBuffers  # noqa: E402
from mkv_ascend.drafting.lost_states import Chunk  # noqa: E402

pytestmark = pytest.mark.core

K = 3


def replacement(patch):
    """The first function that a patch puts in place of a foreign one."""
    return next(iter(patch.functions.values()))


def test_rows_that_decode_stand_before_chunks_of_prompts():
    """One without drafts has a token; vLLM puts it behind chunks of K + 1 tokens."""
    tokens = {"chunk": K + 1, "long": 9, "decodes": 1, "verifies": K + 1, "fewer": 2}
    drafts = {"verifies": [5] * K, "fewer": [5]}
    sort = replacement(recurrent.sort_rows)
    assert model_runner.sort_batch_req_ids(tokens, drafts, K + 1).index("chunk") < 3
    found = sort(model_runner.sort_batch_req_ids, tokens, drafts, K + 1)
    assert found == ["verifies", "fewer", "decodes", "chunk", "long"]


def group_of(names, spec=None, kv_group=0):
    return AttentionGroup(object, list(names), spec, kv_group)


def test_the_targets_pass_keeps_its_own_layers_of_each_group():
    groups = [
        [group_of(["a", "draft.a"]), group_of(["draft.b"])],
        [group_of(["draft.c"], kv_group=1)],
        [group_of(["b"], kv_group=2)],
    ]
    kept = without_layers(groups, {"draft.a", "draft.b", "draft.c"})
    # By KV group still: a group that has none left keeps its place.
    assert [[group.layer_names for group in of_kv] for of_kv in kept] == [[["a"]], [], [["b"]]]
    assert groups[0][0].layer_names == ["a", "draft.a"]


def test_each_row_of_logits_has_its_requests_adapter():
    """Rows of a verify step all have one; a chunk of a prompt, its last one too, has one row."""
    requests = SimpleNamespace(
        max_num_reqs=4,
        num_computed_prefill_tokens=np.array([6, 8, 0, 4]),
        prefill_len=SimpleNamespace(np=np.array([6, 8, 9, 9])),
    )
    state = AdaptersOfRows(requests)
    state.lora_ids[:] = [1, 0, 2, 3]
    names, batch = ["d", "a", "c", "b"], np.array([3, 0, 2, 1])
    rows, tokens, _ = state.make_lora_inputs(names, batch, np.array([5, K + 1, 2, 3]))
    assert rows == (3, 1, 1, 1, 1, 2, 0, 0, 0)
    assert tokens == (3,) * 5 + (1,) * (K + 1) + (2,) * 2 + (0,) * 3


@pytest.mark.parametrize("kind", [Mamba2AttentionMetadataBuilder, object])
@pytest.mark.parametrize("longest", [1, K, K + 1, K + 3])
def test_rows_of_fewer_drafts_are_captured_as_those_of_the_most(kind, longest):
    builder = object.__new__(type("Builder", (kind,), {}))
    builder.num_spec_tokens = K
    common = SimpleNamespace(max_query_len=longest)
    common.replace = lambda **changed: SimpleNamespace(**changed)
    capture = replacement(recurrent.capture_any_count)
    found = capture(lambda _, given: given, builder, common).max_query_len
    assert found == (longest if kind is object else max(longest, K + 1))


@pytest.mark.parametrize(
    ("requests", "tokens", "fits"), [(4, 16, True), (5, 16, False), (4, 17, False), (1, 1, True)]
)
def test_buffers_hold_the_tokens_of_all_requests(requests, tokens, fits):
    builder = SimpleNamespace(decode_cudagraph_max_bs=4, spec_token_indx=torch.zeros(16))
    has_room = replacement(recurrent.has_room)
    assert has_room(lambda *_: False, builder, requests, tokens) is fits
    assert has_room(lambda *_: True, builder, requests, tokens)


STATES = MambaSpec(block_size=128, shapes=((4, 4),), dtypes=(torch.float32,))
KEYS = FullAttentionSpec(block_size=128, num_kv_heads=1, head_size=128, dtype=torch.bfloat16)


@pytest.mark.parametrize(
    ("specs", "aligns", "updates"),
    [([STATES], True, False), ([KEYS], False, True), ([KEYS, STATES], True, True)],
)
def test_a_stage_leaves_out_what_only_missing_layers_need(specs, aligns, updates):
    manager = SimpleNamespace(run_fullgraph="vllm-ascend's")
    runner = SimpleNamespace(
        attn_groups=[[group_of(["a"], spec)] for spec in specs],
        model_state=SimpleNamespace(_align_mode=True),
        cudagraph_manager=manager,
    )
    stages.do_without_missing_kinds(runner)
    assert runner.model_state._align_mode is aligns
    assert (manager.run_fullgraph == "vllm-ascend's") is updates


@pytest.mark.parametrize(
    ("drafts", "is_last", "taken_back"), [(True, False, True), (True, True, False), (False,) * 3]
)
def test_first_stages_take_rejected_tokens_back_on_the_host(
    drafts, is_last, taken_back, monkeypatch
):
    monkeypatch.setattr(stages, "get_pp_group", lambda: SimpleNamespace(is_last_rank=is_last))
    runner = SimpleNamespace(sync_spec_pp_cpu_counts=False)
    config = SimpleNamespace(speculative_config=object() if drafts else None)
    stages.take_back_on_the_host(runner, config)
    assert runner.sync_spec_pp_cpu_counts is taken_back


def sync_of(requests, each, *, eager=False):
    return SimpleNamespace(num_reqs=requests, uniform_token_count=each, eager=eager)


@pytest.mark.parametrize(
    ("sync", "agreed"),
    [
        (None, None),
        (sync_of(4, K + 1), 4),
        (sync_of(4, K + 1, eager=True), None),
        # Other graphs than those of verify steps: decodes of a token each, and of unlike rows.
        (sync_of(4, 1), None),
        (sync_of(4, K), None),
        (sync_of(4, None), None),
    ],
)
def test_ranks_replay_what_all_of_them_verify(sync, agreed):
    speculator = SimpleNamespace(dp_sync=sync, num_speculative_steps=K)
    assert MkvSpeculator._agreed_requests(speculator) == agreed


@pytest.mark.parametrize(
    ("ranks", "experts", "agreed", "expected"),
    [
        (1, True, True, (6, None)),
        (2, True, True, (9, [9, 9])),
        (2, False, True, (6, [6, 6])),
        (2, True, False, (6, [6, 6])),
    ],
)
def test_ranks_with_experts_run_as_many_rows_as_any_of_them(
    ranks, experts, agreed, expected, monkeypatch
):
    monkeypatch.setattr(drafts, "is_drafter_moe_model", lambda _: experts)
    monkeypatch.setattr(MkvSpeculator, "most_rows_of_a_rank", lambda _: 9)
    parallel = SimpleNamespace(data_parallel_size=ranks, pipeline_parallel_size=1)
    speculator = object.__new__(MkvSpeculator)
    speculator.dp_size, speculator.dp_sync = ranks, object() if agreed else None
    speculator.vllm_config = SimpleNamespace(parallel_config=parallel)
    speculator.draft_counts = None
    draft = drafts.SpeculatorDraft(loaded(vllm_config=speculator.vllm_config), speculator, None)
    rows, across = draft.share_rows(6)
    assert (rows, None if across is None else across.tolist()) == expected
    assert speculator.replays_in_step() is (ranks > 1 and experts)
    # Each rank takes K from the number of its own requests.
    speculator.draft_counts = DraftCounts([K])
    assert not speculator.replays_in_step()


@pytest.fixture
def npu_streams(monkeypatch):
    """As model runner V2 has it: vLLM's streams are the NPU's."""
    for name in ("Event", "Stream", "stream", "current_stream"):
        monkeypatch.setattr(torch.cuda, name, getattr(torch.npu, name))


def batch_of(*names, structured=True):
    return SimpleNamespace(
        req_ids=list(names), num_reqs=len(names), has_structured_output_reqs=structured
    )


def drafts_of(*rows):
    return torch.tensor(rows, dtype=torch.int64, device="npu")


def told_of(handler):
    """Each request with its drafts, as often as it is told of."""
    found = handler.get_draft_tokens()
    return sorted(zip(found.req_ids, found.draft_token_ids, strict=True))


@pytest.mark.usefixtures("npu_streams")
def test_the_scheduler_is_told_what_was_drafted_last_for_each_running_request():
    running = {"a", "b", "c"}
    told = target_output.ScheduledDrafts(torch.device("npu"), None, running)
    told.set_draft_tokens(batch_of("a", "b"), drafts_of([1, 2], [3, 4]))
    told.set_draft_tokens(batch_of("c", "a"), drafts_of([5, 6], [7, 8]))
    assert told_of(told) == [("a", [7, 8]), ("b", [3, 4]), ("c", [5, 6])]
    running.discard("b")
    # In a step without grammars nothing is copied: its requests have no drafts to tell.
    told.set_draft_tokens(batch_of("a", structured=False), drafts_of([9, 9]))
    assert told_of(told) == [("a", [-1, -1]), ("c", [5, 6])]


@pytest.mark.usefixtures("npu_streams")
def test_the_scheduler_is_told_as_many_drafts_as_a_batch_of_its_size_has():
    counts = DraftCounts([2, 2, 1])
    told = target_output.ScheduledDrafts(torch.device("npu"), counts, ())
    for names, number in ((("a",), 2), (("a", "b"), 1)):
        told.set_draft_tokens(batch_of(*names), drafts_of(*[[1, 2]] * len(names)))
        found = told.get_draft_tokens()
        assert found.draft_token_ids == [[1, 2][:number]] * len(names)


@pytest.mark.parametrize("axes", [1, 3])
def test_drawn_tokens_have_seeds_and_positions_of_their_own_pass(axes, monkeypatch):
    """On several axes (M-RoPE) they count on from where the first pass was sampled from."""
    asked, states = [], torch.arange(5)

    def sample(states, positions, requests, _temperature, _seeds, step, _logits):
        asked.append((states.tolist(), positions.tolist(), requests.tolist(), int(step)))
        return torch.zeros(len(states), dtype=torch.int64)

    monkeypatch.setattr(drafts, "send_tokens_to_experts", lambda: None)
    inputs = {"token_ids": torch.zeros(5), "positions": torch.arange(20, 25)}
    buffers = DraftBuffers(**inputs, sample_rows=None)
    speculator = SimpleNamespace(
        samples=True,
        sample_draft=sample,
        idx_mapping=torch.tensor([6, 4, 5]),
        temperature=None,
        seeds=None,
        draft_steps=torch.arange(K),
        draft_logits=None,
    )
    draft = drafts.SpeculatorDraft(loaded(lambda **_: states), speculator, buffers)
    for _ in range(2):
        asked.clear()
        assert draft.forward(5).last is states
        draft.sample(states, torch.tensor([1, 4]))
        for number in (1, 2):
            later = torch.tensor([21, 24]) + number
            # Axes need not be those of the sequence.
            draft.forward(2, torch.stack([later + 50] * axes) if axes > 1 else later)
            draft.sample(states, slice(2))
        assert asked[0] == ([1, 4], [21, 24], [6, 4], 0)
        assert asked[1:] == [([0, 1], [22, 25], [6, 4], 1), ([0, 1], [23, 26], [6, 4], 2)]


def test_layers_that_draft_have_a_kind_as_the_targets_do():
    config = SimpleNamespace(
        layer_types=["full_attention"] * 2, num_hidden_layers=2, num_nextn_predict_layers=2
    )
    made = with_kinds_of_all_layers(config)
    assert made.layer_types == ["full_attention"] * 2 + ["sliding_attention"] * 2
    assert config.layer_types == ["full_attention"] * 2
    config.layer_types = None
    assert with_kinds_of_all_layers(config).layer_types is None


def test_tokens_behind_a_hit_are_those_of_the_requests_own_row():
    ids = torch.arange(40, dtype=torch.int32).view(4, 10)
    batch = SimpleNamespace(idx_mapping_np=np.array([3, 0]), req_ids=["x", "y"])
    tokens = tokens_on_the_device(batch, ids)
    assert tokens.rows == {"x": 0, "y": 1}
    assert tokens.of([Chunk(1, 2, 4), Chunk(0, 0, 3)]).tolist() == [2, 3, 30, 31, 32]


class Graph(NamedTuple):
    """A description of a graph, as a manager keeps graphs by it."""

    cg_mode: Any
    name: str


def test_a_replay_updates_the_launches_that_its_own_graph_has_noted():
    """Two graphs of as many tokens; what is noted while nothing is captured is nobody's."""
    acl_graph = target_graphs.acl_graph
    full = target_graphs.CUDAGraphMode.FULL
    graphs = [Graph(full, name) for name in "ab"]
    manager, before = SimpleNamespace(), acl_graph._graph_params
    capture, update = target_graphs.note_by_graph.functions.values()

    def forward(graph, warmup):
        if not warmup:
            acl_graph._graph_params.attn_params[8].append(graph.name)

    def capture_all(_, create):
        for graph in graphs:
            create(graph, True)
            create(graph, False)

    capture(capture_all, manager, forward)
    assert acl_graph._graph_params is before
    for graph in graphs:
        found = update(lambda *_: acl_graph._graph_params.attn_params[8], manager, None, graph)
        assert found == [graph.name]
    assert acl_graph._graph_params is before

# SPDX-License-Identifier: Apache-2.0
"""States of recurrent drafts against the plainest way to keep them: run every accepted token anew.

A layer here is a number per request, which each token changes, and a convolution whose inputs the
change depends on. It runs rows as the kernels do: token by token, a state for each token's block;
or as a prefill, which leaves the last state only.
"""

import functools
import random
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from vllm.v1.attention.backends.registry import MambaAttentionBackendEnum

from mkv_ascend.drafting.counts import Eager
from mkv_ascend.drafting.draft import TargetOutput
from mkv_ascend.drafting.lost_states import Chunk, Lost, LostStates, rebuilding_passes
from mkv_ascend.drafting.recurrent_groups import (
    COMMITTED,
    SCRATCH,
    RecurrentCaches,
    RecurrentGroup,
    RecurrentGroups,
    TargetRows,
    commit,
    tokens_to_commit,
)
from tests.support import hosts
from tests.unit.drafting.fake_engine import Case, Engine
from tests.unit.drafting.fake_recurrent import Built, RecurrentBuilder

Mamba2 = hosts.module("backends.recurrent").Mamba2
refuse_unknown_kinds = hosts.module("drafting.layer_groups").refuse_unknown_kinds

MODULUS = 1_000_003
WIDTH = 4
"""Tokens that the convolution sees."""


def moved(state: int, inputs: list[int]) -> int:
    """The state after the last of ``inputs``, which the convolution sees."""
    seen = sum((place + 1) * token for place, token in enumerate(inputs[-WIDTH:]))
    return (31 * state + seen) % MODULUS


def sequential(tokens: list[int]) -> int:
    """The state after all of these tokens, one after another."""
    state, inputs = 0, [0] * (WIDTH - 1)
    for token in tokens:
        inputs.append(token)
        state = moved(state, inputs)
    return state


class Layer:
    """Caches as the kernels keep them, and the two ways in which they run a row."""

    def __init__(self, blocks: int, speculative: int) -> None:
        # The content of blocks that were never written is not defined.
        self.window = torch.randint(1, 99, (blocks, WIDTH - 1 + speculative, 1))
        self.state = torch.randint(1, 99, (blocks, 1))

    def run_by_token(self, blocks: list[int], tokens: list[int]) -> None:
        inputs = self.window[blocks[0], : WIDTH - 1, 0].tolist()
        state = int(self.state[blocks[0]])
        for block, token in zip(blocks, tokens, strict=False):
            inputs.append(token)
            state = moved(state, inputs)
            self.state[block] = state
        kept = torch.tensor(inputs[1:])
        self.window[blocks[0], : len(kept), 0] = kept

    def prefill(self, block: int, tokens: list[int], begins: bool) -> None:
        inputs = [0] * (WIDTH - 1) if begins else self.window[block, : WIDTH - 1, 0].tolist()
        state = 0 if begins else int(self.state[block])
        for token in tokens:
            inputs.append(token)
            state = moved(state, inputs)
        self.state[block] = state
        self.window[block, : WIDTH - 1, 0] = torch.tensor(inputs[1 - WIDTH :])


def caches_of(layer: Layer) -> list[RecurrentCaches]:
    return [RecurrentCaches((layer.window,), (layer.state,))]


class Builder:
    """Gives for metadata what it was given."""

    def need(self) -> str:
        return "one"

    def first_pass(self, batch: Any, table: torch.Tensor, rows: TargetRows) -> Any:
        assert rows.ones.tolist() == [1] * batch.requests
        return rows.row_lengths.tolist(), rows.begins.tolist(), table

    def finished(self, built: Any, rows: TargetRows) -> Any:
        return built

    def later_pass(self, batch: Any, table: torch.Tensor, begins: torch.Tensor) -> Any:
        assert not begins.any()
        return table

    def for_table(self, built: Any, table: torch.Tensor) -> Any:
        return (*built[:2], table) if isinstance(built, tuple) else table


@dataclass
class Request:
    """``tokens``: those the states must have seen. ``blocks``: of its row in the block table."""

    blocks: list[int]
    tokens: list[int]


class Batch:
    """What is read of a pass's rows."""

    def __init__(self, rows: list[int], before: list[int], loose: int) -> None:
        starts = torch.tensor([0, *rows]).cumsum(0).to(torch.int32)
        lengths = torch.tensor([sum(pair) for pair in zip(rows, before, strict=True)])
        self.requests = len(rows)
        self.query_start_loc = self.query_start_loc_host = starts
        self.lengths = lengths.to(torch.int32)
        # In asynchronous scheduling the host has a bound for rows that follow others.
        self.length_bounds = lengths + loose * (torch.tensor(before) > 0)


class Graph:
    """What a graph for ``requests`` verify steps keeps: states of its own, and metadata."""

    def __init__(self, engine: RecurrentGroups, requests: int, width: int) -> None:
        self.states = engine.for_graph(engine.groups, requests)
        made_up = Batch([width] * requests, [width] * requests, loose=0)
        self.first = self.states.first_pass(made_up, None)
        self.later = self.states.later_passes(Batch([1] * requests, [1] * requests, loose=0))


class StatesEngine:
    """Requests in random order, with chunks of prompts, drafts, pauses, and preemption."""

    def __init__(self, speculative: int, seed: int) -> None:
        self.k, self.random = speculative, random.Random(seed)
        torch.manual_seed(seed)
        blocks = list(range(1, 1 + 6 * (1 + speculative)))
        self.random.shuffle(blocks)
        size = 1 + speculative
        self.requests = [Request(blocks[i * size : (i + 1) * size], []) for i in range(6)]
        # Two KV groups: a request's blocks of the second are the next ones.
        self.layers = [Layer(len(blocks) + 2, speculative) for _ in range(2)]
        self.tables = [torch.zeros(8, size, dtype=torch.int32) for _ in range(2)]
        groups = [
            RecurrentGroup(index, Builder(), (str(index),), functools.partial(caches_of, layer))
            for index, layer in enumerate(self.layers)
        ]
        self.states = RecurrentGroups(groups, self.tables, 8, speculative)
        assert self.states.needs == ((0, 1),)
        self.graphs = [Graph(self.states, size, 1 + speculative) for size in range(1, 9)]
        self.rejected = torch.zeros(8, dtype=torch.int32)

    def token(self) -> int:
        return self.random.randint(1, 999)

    def row(self, request: Request) -> tuple[list[int], int]:
        """The target's row of this request, and how many of its tokens are accepted."""
        if request.tokens and self.random.random() < 0.1:
            request.tokens.clear()  # preempted: starts anew, its blocks hold what they held
        is_prompt = not request.tokens or self.random.random() < 0.3
        if is_prompt:
            count = self.random.choice([1, 2, self.k + 1, self.k + 2, 9])
            return [self.token() for _ in range(count)], count
        drafted = self.random.randint(0, self.k)
        return [self.token() for _ in range(1 + drafted)], self.random.randint(1, 1 + drafted)

    def step(self) -> None:
        batch = self.random.sample(self.requests, self.random.randint(1, 6))
        rows, accepted = zip(*(self.row(request) for request in batch), strict=True)
        before = [len(request.tokens) for request in batch]
        for index, table in enumerate(self.tables):
            table[: len(batch)] = torch.tensor([request.blocks for request in batch]) + index
        common = Batch([len(row) for row in rows], before, loose=self.random.choice([0, self.k]))
        rejected = torch.tensor([len(row) - a for row, a in zip(rows, accepted, strict=True)])
        self.catch_up(common, rows, None if not rejected.any() else rejected)
        for request, row, count in zip(batch, rows, accepted, strict=True):
            request.tokens += row[:count]
        self.states.commit(len(batch))
        self.check(batch, self.states.later_passes(Batch([1] * len(batch), [1] * len(batch), 0)))

    def replayed_step(self) -> None:
        """All verify K drafts, in a graph for as many requests or more: the others are padding.

        The engine's tables and counts hold what earlier batches left in padding.
        """
        begun = [request for request in self.requests if request.tokens]
        batch = self.random.sample(begun, self.random.randint(0, len(begun)))
        graph = self.graphs[self.random.randint(max(len(batch), 1), 8) - 1]
        for index, table in enumerate(self.tables):
            for row, request in zip(table, batch, strict=False):
                row[:] = torch.tensor(request.blocks) + index
        rows = [[self.token() for _ in range(1 + self.k)] for _ in range(graph.states.requests)]
        for index, (request, row) in enumerate(zip(batch, rows, strict=False)):
            count = self.random.randint(1, len(row))
            self.rejected[index] = len(row) - count
            request.tokens += row[:count]
        live = (torch.arange(len(rows)) < len(batch)).to(torch.int32)
        graph.states.refresh_tables(self.states, live, self.rejected[: len(rows)])
        self.run(graph.states.rebuild_metadata(graph.first, COMMITTED), rows)
        graph.states.commit(len(rows))
        self.check(batch, graph.states.rebuild_metadata(graph.later, SCRATCH))

    def catch_up(self, common: Any, rows: Any, rejected: torch.Tensor | None) -> None:
        self.run(self.states.first_pass(common, rejected), rows)

    def run(self, metadata: Any, rows: Any) -> None:
        for group, layer in enumerate(self.layers):
            lengths, begins, table = metadata[str(group)]
            for index, row in enumerate(rows):
                blocks = table[index].tolist()
                if lengths[index]:
                    assert lengths[index] == len(row)
                    layer.run_by_token(blocks, row)
                else:
                    layer.prefill(blocks[0], row, begins[index])

    def check(self, batch: list[Request], metadata: Any) -> None:
        """Draft K tokens; every one sees what was accepted and those drafted before it."""
        for group, layer in enumerate(self.layers):
            scratch = metadata[str(group)][:, 0].tolist()
            for block in scratch[len(batch) :]:
                layer.run_by_token([block], [self.token()])
            for block, request in zip(scratch, batch, strict=False):
                drafted: list[int] = []
                for _ in range(self.k):
                    drafted.append(self.token())
                    layer.run_by_token([block], drafted[-1:])
                    assert int(layer.state[block]) == sequential(request.tokens + drafted)
            for request in self.requests:
                if request.tokens:
                    state = layer.state[request.blocks[0] + group]
                    assert int(state) == sequential(request.tokens)


@pytest.mark.parametrize("speculative", [1, 2, 3, 5])
def test_every_draft_token_sees_the_accepted_tokens_and_no_others(speculative: int) -> None:
    for seed in range(12):
        engine = StatesEngine(speculative, seed)
        for _ in range(25):
            engine.step()
            engine.replayed_step()


def test_rows_that_begin_a_request_or_are_long_count_as_one_token() -> None:
    lengths = torch.tensor([3, 50, 14, 20], dtype=torch.int32)
    starts = torch.tensor([0, 3, 13, 17, 18], dtype=torch.int32)
    rejected = torch.tensor([0, 0, 3, 0])
    assert tokens_to_commit(starts, lengths, rejected, longest_row=4).tolist() == [1, 1, 1, 1]
    assert tokens_to_commit(starts, lengths, None, longest_row=4).tolist() == [1, 1, 4, 1]


@pytest.mark.parametrize("default", ["cpu", "meta"])
def test_states_are_copied_where_they_lie_whatever_the_default_device_is(default: str) -> None:
    """In plain loops: of each request the window and the state after its last accepted token."""
    table = torch.tensor([[3, 1, 5], [4, 0, 2]], dtype=torch.int32)
    window, state = torch.arange(30).view(6, 5, 1), torch.arange(100, 106).view(6, 1)
    expected = window.clone(), state.clone()
    for blocks, accepted in zip(table.tolist(), (3, 1), strict=True):
        for target in blocks[:2]:
            for row in range(3):
                expected[0][target, row] = window[blocks[0], accepted - 1 + row]
            expected[1][target] = state[blocks[accepted - 1]]
    accepted_tokens = torch.tensor([3, 1])
    with torch.device(default):
        commit([RecurrentCaches((window,), (state,))], table, accepted_tokens, 2)
    assert window.equal(expected[0])
    assert state.equal(expected[1])


def layer(kind: Any, rows: int) -> Any:
    return SimpleNamespace(
        mamba_type=kind, conv_kernel_size=WIDTH, get_state_shape=lambda: ((rows, 8), (2, 4, 4))
    )


def test_an_unknown_kind_is_refused_by_name() -> None:
    layers = {"model.layers.3": layer("another kind", WIDTH + 1)}
    with pytest.raises(NotImplementedError, match=r"model\.layers\.3.*another kind.*GDN_ATTN"):
        refuse_unknown_kinds(layers, 2)


def test_a_window_without_room_for_drafts_is_refused() -> None:
    known = MambaAttentionBackendEnum.GDN_ATTN
    refuse_unknown_kinds({"wide": layer(known, WIDTH - 1 + 2)}, 2)
    with pytest.raises(NotImplementedError, match=r"narrow.*and not those of 2 draft tokens"):
        refuse_unknown_kinds({"narrow": layer(known, WIDTH - 1)}, 2)


@dataclass
class BuiltOfMamba:
    num_decodes: int
    state_indices_tensor_d: torch.Tensor
    state_indices_tensor_p: torch.Tensor


def test_metadata_of_mamba_for_another_table_has_its_rows() -> None:
    table = torch.arange(12).view(4, 3)
    built = BuiltOfMamba(
        num_decodes=3, state_indices_tensor_d=table[:3], state_indices_tensor_p=table[3:]
    )
    other = Mamba2(None, None).for_table(built, table + 100)
    assert other.state_indices_tensor_d.tolist() == (table[:3] + 100).tolist()
    assert other.state_indices_tensor_p.tolist() == [109]
    assert built.state_indices_tensor_d.tolist() == table[:3].tolist()


def test_rows_of_the_engine_are_the_first_rows_in_the_order_asked_for() -> None:
    groups = [
        RecurrentGroup(index, RecurrentBuilder(), (f"layers.{index}",), list) for index in range(2)
    ]
    tables = [torch.arange(begin, begin + 12, dtype=torch.int32).view(4, 3) for begin in (1, 101)]
    engine = RecurrentGroups(groups, tables, requests=4, speculative=2)
    own = engine.for_graph(groups, requests=3)
    own.take_rows(engine, torch.tensor([2, 0]))
    assert own._tables[0].tolist() == [[7, 8, 9], [1, 2, 3], [0, 0, 0]]
    assert own._tables[1].tolist() == [[107, 108, 109], [101, 102, 103], [0, 0, 0]]
    assert engine._tables[0].tolist() == torch.arange(1, 13).view(4, 3).tolist()


@torch.inference_mode()
@pytest.mark.parametrize("begins", range(3))
def test_no_graph_serves_a_batch_in_which_one_request_begins(begins: int) -> None:
    """Its prompt may be as long as the others' verify steps; its blocks hold another's states."""
    engine, each = Engine(Case("recurrent", 3), graphs=(4,)), 4
    starts = torch.arange(4, dtype=torch.int32) * each
    lengths = torch.tensor([2 * each] * 3, dtype=torch.int32)
    lengths[begins] = each
    none = torch.zeros(3, dtype=torch.int32)
    tokens = none.repeat(each)
    target = TargetOutput(tokens, tokens, none, None, None, starts, starts, lengths, lengths, each)
    assert engine.graphs.graph_for(target) is Eager.DRAFT_PREFILL
    lengths[begins] = each + 1
    assert not isinstance(engine.graphs.graph_for(target), Eager)


def test_a_replay_rebuilds_the_metadata_of_each_layer_from_its_groups_table() -> None:
    """Layers of a group share one, and groups that differ in their table alone have one builder."""
    layers = (("layers.0", "layers.2"), ("layers.1", "layers.3"))
    groups = [
        RecurrentGroup(index, RecurrentBuilder(), names, list) for index, names in enumerate(layers)
    ]
    tables = [torch.arange(begin, begin + 12, dtype=torch.int32).view(4, 3) for begin in (1, 101)]
    states = RecurrentGroups(groups, tables, requests=4, speculative=2)
    states._target_rows = TargetRows(torch.zeros(4).bool(), torch.ones(4), torch.ones(4))
    none: Any = None
    before = Built(torch.zeros(4).bool(), torch.zeros(4).bool(), torch.zeros(4, 3), none)
    metadata = dict.fromkeys((*layers[0], *layers[1]), before)
    for column in (0, 1):
        rebuilt: Any = states.rebuild_metadata(metadata, column)
        assert rebuilt.keys() == metadata.keys()
        for names, table in zip(layers, tables, strict=True):
            assert [rebuilt[name].table.tolist() for name in names] == [
                table[:, column:].tolist()
            ] * 2
            assert all((rebuilt[name].ones is None) == bool(column) for name in names)


def test_requests_behind_computed_tokens_are_handed_out_once():
    lost = LostStates()
    lost.note([("a", 128), ("b", 0), ("c", 256)], ended=[])
    assert lost.take({"b": 0, "c": 1, "a": 2}) == [Lost(1, 256), Lost(2, 128)]
    assert lost.take({"b": 0, "c": 1, "a": 2}) == []


def test_only_requests_of_the_batch_are_handed_out():
    lost = LostStates()
    lost.note([("a", 128)], ended=[])
    assert lost.take({"b": 0}) == []
    assert lost.take({"a": 3}) == [Lost(3, 128)]


def test_ended_requests_are_forgotten_and_their_names_may_come_again():
    lost = LostStates()
    lost.note([("a", 128), ("b", 128)], ended=[])
    lost.note([("b", 256)], ended=["a", "b"])
    assert lost.take({"a": 0, "b": 1}) == [Lost(1, 256)]


def test_a_request_that_begins_anew_has_what_is_computed_now():
    """Preempted, and resumed with fewer tokens, or none, of its prefix in the cache."""
    lost = LostStates()
    lost.note([("a", 256), ("b", 256)], ended=[])
    lost.note([("a", 128), ("b", 0)], ended=[])
    assert lost.take({"a": 0, "b": 1}) == [Lost(0, 128)]


def test_requests_that_were_never_noted_end_too():
    lost = LostStates()
    lost.note([("a", 1)], ended=["b"])
    assert lost.take({"a": 0}) == [Lost(0, 1)], "one token is one that the draft has not seen"


def test_requests_share_passes_and_go_on_as_the_first_of_the_next():
    assert rebuilding_passes([Lost(3, 5), Lost(4, 2), Lost(7, 9)], 8) == [
        [Chunk(3, 0, 5), Chunk(4, 0, 2), Chunk(7, 0, 1)],
        [Chunk(7, 1, 9)],
    ]


def test_without_lost_requests_there_is_no_pass():
    assert rebuilding_passes([], 8) == []


def test_a_pass_without_tokens_is_an_error():
    with pytest.raises(ValueError, match="give 1 or more"):
        rebuilding_passes([Lost(0, 5)], 0)


@given(st.lists(st.integers(1, 40), max_size=6), st.integers(1, 30))
def test_every_token_is_read_once_and_in_order(lengths, most):
    lost = [Lost(2 * row + 1, tokens) for row, tokens in enumerate(lengths)]
    passes = rebuilding_passes(lost, most)
    read = [
        (chunk.row, token)
        for chunks in passes
        for chunk in chunks
        for token in range(chunk.start, chunk.end)
    ]
    assert read == [(one.row, token) for one in lost for token in range(one.tokens)]
    sizes = [sum(chunk.end - chunk.start for chunk in chunks) for chunks in passes]
    assert all(size == most for size in sizes[:-1])
    assert len(passes) == -(-sum(lengths) // most)
    # A chunk that goes on is the first of its pass.
    assert all(chunk.start == 0 for chunks in passes for chunk in chunks[1:])

# SPDX-License-Identifier: Apache-2.0
"""What a draft and its builders are told of each pass, beside what decides its tokens here.

A draft in plain torch takes no images and runs on one rank. So tokens do not show what is missing.
"""

import itertools
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest
import torch

from mkv_ascend.drafting.draft import PassBatch, TargetOutput
from mkv_ascend.drafting.mask_tokens_strategy import MaskTokensStrategy
from mkv_ascend.drafting.needs import Needs
from mkv_ascend.drafting.recurrent_groups import RecurrentGroups
from mkv_ascend.drafting.recurrent_strategy import RecurrentStrategy
from mkv_ascend.drafting.strategy import AttentionStrategy, Planner
from tests.support.fake_draft import FakeBuilder, FakeDraft
from tests.unit.drafting.fake_engine import MASK, MOST_LENGTH, MOST_REQUESTS, Case, Engine
from tests.unit.drafting.fake_recurrent import RecurrentBuilder

K = 3
KINDS = ("attention", "head", "recurrent")


def add_to_each_step(engine: Engine, **fields: object) -> None:
    """Let the target's steps have these as well."""
    owners: tuple[Any, ...] = (engine.graphs, engine.proposal)
    for owner in owners:
        made = owner.propose

        def propose(target: TargetOutput, *others: Any, made: Any = made) -> Any:
            return made(replace(target, **fields), *others)

        owner.propose = propose


@torch.inference_mode()
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("graphs", [(), (2, 4)])
def test_each_first_pass_is_embedded_with_the_images_of_its_step(
    kind: str, graphs: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A chunk of a prompt with images may be as long as a verify step, and be replayed."""
    engine, images = Engine(Case(kind, K), seed=1, graphs=graphs), object()
    add_to_each_step(engine, multimodal=images)
    strategy: Any = engine.proposal.strategy
    laid_out, rows_of = [], strategy.lay_out

    def lay_out(*arguments: Any) -> int:
        rows: int = rows_of(*arguments)
        laid_out.append((rows, images, engine.draft.buffers.token_ids[:rows].tolist()))
        return rows

    embedded = []

    def embed(draft: FakeDraft, rows: int, multimodal: object = None) -> None:
        embedded.append((rows, multimodal, draft.buffers.token_ids[:rows].tolist()))

    monkeypatch.setattr(FakeDraft, "embed", embed)
    strategy.lay_out = lay_out
    for number in range(18):
        engine.step(verify_only=number % 3 == 2)
    assert embedded == laid_out
    assert (engine.graphs.replays > 2) == bool(graphs)


@torch.inference_mode()
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("in_step", [False, True])
def test_the_rows_of_later_passes_are_said_before_they_run(
    kind: str, in_step: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Engine(Case(kind, K), seed=2)
    engine.draft.in_step = in_step
    forward, told = FakeDraft.forward, []

    def forwarded(draft: FakeDraft, rows: int, positions: Any = None) -> Any:
        told.append(("first" if positions is None else "later", rows))
        return forward(draft, rows, positions)

    def begin(draft: FakeDraft, rows: int, requests: int) -> None:
        told.append(("begin", rows, requests))

    monkeypatch.setattr(FakeDraft, "forward", forwarded)
    monkeypatch.setattr(FakeDraft, "begin_later_passes", begin)
    propose: Any = engine.proposal.propose
    numbers = []

    def proposed(target: TargetOutput, *others: Any) -> Any:
        numbers.append(target.requests)
        return propose(target, *others)

    engine.proposal.propose = proposed  # type: ignore[method-assign]
    for _ in range(8):
        told.clear()
        engine.step()
        rows = told[0][1] if in_step else numbers[-1]
        later = engine.plan.sizes.later_passes
        assert told[1:] == [("begin", rows, numbers[-1]), *[("later", rows)] * later]
    assert len(set(numbers)) > 2


def check_batch(batch: PassBatch, step: object, ranks: torch.Tensor) -> None:
    """Of any pass, as plain loops over its requests."""
    starts = batch.query_start_loc_host.tolist()
    assert batch.query_start_loc.tolist() == starts
    assert (len(starts), starts[-1]) == (batch.requests + 1, batch.rows)
    rows = [end - start for start, end in itertools.pairwise(starts)]
    assert batch.longest_row == max(rows)
    assert batch.causal
    assert batch.common is step
    assert batch.rows_across_ranks is ranks
    assert batch.input_rows == batch.rows + 5
    last = [end - 1 for end in starts[1:]]
    for lengths in (batch.lengths, batch.host_lengths, batch.length_bounds):
        assert (lengths.dtype, len(lengths)) == (torch.int32, batch.requests)
    assert bool((batch.length_bounds >= batch.lengths).all())
    assert (batch.positions.dtype, len(batch.positions)) == (torch.int32, batch.rows)
    for index, (table, slots) in enumerate(zip(batch.tables, batch.slots, strict=True)):
        assert len(table) == batch.requests
        assert len(slots) == batch.rows
        size = (4, 8)[index]
        for row, place in enumerate(last):
            position, slot = int(batch.positions[place]), int(slots[place])
            # The last rows of the first pass may be rejected ones.
            if slot >= 0:
                assert slot == int(table[row, position // size]) * size + position % size


@torch.inference_mode()
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("shares", "on_device"), [(True, 0), (False, 0), (False, 2)])
def test_builders_know_the_step_and_the_rows_of_other_ranks(
    kind: str, shares: bool, on_device: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = Case(kind, K, (4, 8), (shares,) * 2, (False,) * 2, on_device=on_device)
    engine = Engine(case, seed=3)
    step, ranks = object(), torch.tensor([8, 4])
    add_to_each_step(engine, common=step)
    build, indices = FakeBuilder.build, []

    def built(builder: FakeBuilder, batch: PassBatch, *others: Any) -> Any:
        indices.append(batch.index)
        check_batch(batch, step, ranks)
        if not batch.index:
            assert batch.host_lengths.tolist() == batch.lengths.tolist()
        return build(builder, batch, *others)

    def shared(draft: FakeDraft, rows: int) -> tuple[int, torch.Tensor]:
        return rows + 5, ranks

    monkeypatch.setattr(FakeBuilder, "build", built)
    monkeypatch.setattr(FakeDraft, "share_rows", shared)
    monkeypatch.setattr(FakeDraft, "later_rows", lambda draft, rows, requests: requests + 5)
    for own in ("first_pass", "later_pass"):
        made = getattr(RecurrentBuilder, own)

        def recurrent(builder: Any, batch: PassBatch, *others: Any, made: Any = made) -> Any:
            check_batch(batch, step, ranks)
            return made(builder, batch, *others)

        monkeypatch.setattr(RecurrentBuilder, own, recurrent)
    for _ in range(6):
        indices.clear()
        engine.step()
        later = engine.plan.sizes.later_passes
        expected = [0, 1] if shares else [0, 0, *(i + 1 for i in range(later) for _ in "ab")]
        assert indices == expected


@torch.inference_mode()
@pytest.mark.parametrize("kind", KINDS)
def test_builders_that_run_in_a_graph_know_its_rows_and_the_longest_lengths(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fake builder reads neither bounds nor the rows of other ranks there; real ones may."""
    engine, requests, told = Engine(Case(kind, K, shares=(False,), on_device=1)), 3, []
    build = FakeBuilder.build

    def built(builder: FakeBuilder, batch: PassBatch, *others: Any) -> Any:
        told.append(batch)
        return build(builder, batch, *others)

    capture: Any = engine.capturer.capture

    def captured(passes: Any, run: Any) -> Any:
        told.clear()
        return capture(passes, run)

    monkeypatch.setattr(FakeBuilder, "build", built)
    monkeypatch.setattr(engine.capturer, "capture", captured)
    engine.graphs.capture(engine.graphs.shape(requests))
    (passes, *_) = engine.graphs.captured[engine.graphs.shape(requests)].passes
    assert [batch.index for batch in told] == list(range(1 + engine.plan.sizes.later_passes))
    for batch in told:
        assert batch.requests == len(batch.tables[0]) == len(batch.lengths) == requests
        rows = batch.rows if batch.index else passes.batch.rows
        assert batch.rows == len(batch.positions) == len(batch.slots[0]) == rows
        assert batch.input_rows == rows
        longest = [MOST_LENGTH + batch.index] * requests
        assert batch.length_bounds.tolist() == longest
        assert batch.length_bounds.dtype == torch.int32


@torch.inference_mode()
@pytest.mark.parametrize("kind", KINDS)
def test_graphs_are_captured_with_a_verify_step_that_begins_no_request(kind: str) -> None:
    engine = Engine(Case(kind, K))
    strategy: Any = engine.proposal.strategy
    targets, planned = [], strategy.plan_captured

    def plan_captured(target: TargetOutput, rows: int) -> Any:
        targets.append(target)
        return planned(target, rows)

    strategy.plan_captured = plan_captured
    engine.graphs.capture(engine.graphs.shape(3))
    (target,) = targets
    each = K + 1
    assert target.requests == 3
    for starts in (target.query_start_loc, target.query_start_loc_host):
        assert starts.tolist() == [0, each, 2 * each, 3 * each]
    for lengths in (target.host_lengths, target.length_bounds):
        assert lengths.tolist() == [2 * each] * 3
    assert target.positions.tolist() == 3 * list(range(each, 2 * each))
    assert len(target.token_ids) == 3 * each
    assert target.longest_row == each
    for name in ("token_ids", "query_start_loc", "query_start_loc_host", "host_lengths"):
        assert getattr(target, name).dtype == torch.int32
    assert target.length_bounds.dtype == torch.int32
    assert strategy.may_replay(target)


@torch.inference_mode()
@pytest.mark.parametrize("kind", [*KINDS, "mask"])
def test_metadata_of_a_graph_is_made_before_its_capture(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Builders copy from the host, which no capture takes."""
    engine = Engine(Case(kind, K, (4, 8), (True, False), (False,) * 2))
    made: list[str] = []

    def noted(owner: type, name: str) -> None:
        method = getattr(owner, name)

        def run(*arguments: Any) -> Any:
            made.append(name)
            return method(*arguments)

        monkeypatch.setattr(owner, name, run)

    noted(FakeBuilder, "build")
    for name in ("first_pass", "later_pass"):
        noted(RecurrentBuilder, name)
    capture: Any = engine.capturer.capture
    before: list[str] = []

    def captured(passes: Any, run: Any) -> Any:
        before.extend(made)
        return capture(passes, run)

    engine.capturer.capture = captured  # type: ignore[method-assign]
    engine.graphs.capture(engine.graphs.shape(2))
    assert "build" in before
    assert before == made


@torch.inference_mode()
@pytest.mark.parametrize("kind", [*KINDS, "mask"])
def test_a_graph_is_tried_with_its_own_first_pass(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Layers and operators of a real draft read the metadata and the batch that are announced."""
    engine, told = Engine(Case(kind, K)), []
    running = FakeDraft.running

    def announced(draft: FakeDraft, metadata: Any, batch: PassBatch) -> Any:
        told.append((metadata, batch))
        return running(draft, metadata, batch)

    monkeypatch.setattr(FakeDraft, "running", announced)
    shape = engine.graphs.shape(2)
    engine.graphs.capture(shape)
    # The fake capturer announces what it captures, too.
    metadata, batch = told[0]
    (passes, *_) = engine.graphs.captured[shape].passes
    assert metadata is passes.first
    assert metadata is not None
    assert batch is passes.batch


class PlannedError(Exception):
    """What a test wants to see was planned; nothing need run."""


@torch.inference_mode()
def test_a_verify_step_has_a_position_on_each_axis() -> None:
    """M-RoPE; the fake has one axis, so nothing is captured."""
    engine = Engine(Case("attention", K))
    rope = torch.full((3, 160), 99, dtype=torch.int32)
    engine.draft.buffers = replace(engine.draft.buffers, rope_positions=rope)
    strategy: Any = engine.proposal.strategy

    def plan_captured(target: TargetOutput, rows: int) -> Any:
        assert target.rope_positions is not None
        assert target.rope_positions.dtype == torch.int32
        assert target.rope_positions.tolist() == [target.positions.tolist()] * 3
        # The first pass has a row more for each request.
        each = list(range(K + 1, 2 * (K + 1) + 1))
        assert rope[:, :rows].tolist() == [each * 2] * 3
        raise PlannedError

    strategy.plan_captured = plan_captured
    with pytest.raises(PlannedError):
        engine.graphs.capture(engine.graphs.shape(2))


@torch.inference_mode()
def test_drafts_of_a_graph_lie_where_the_plan_lies() -> None:
    engine = Engine(Case("attention", K))
    drafted = torch.arange(2 * K).view(2, K)
    engine.proposal._run = lambda draft, passes: drafted
    shape = engine.graphs.shape(2)
    with torch.device("meta"):
        engine.graphs.capture(shape)
    captured = engine.graphs.captured[shape]
    assert captured.drafted.equal(drafted)
    assert captured.passes[0].batch.host_lengths.tolist() == [2 * (K + 1) + 1] * 2


@torch.inference_mode()
def test_recurrent_layers_start_each_row_from_its_first_block(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine, seen = Engine(Case("recurrent", K), seed=4), []
    first_pass, finished = RecurrentBuilder.first_pass, RecurrentBuilder.finished

    def begun(builder: RecurrentBuilder, batch: PassBatch, table: Any, rows: Any) -> Any:
        assert (rows.ones.dtype, rows.ones.tolist()) == (torch.int32, [1] * batch.requests)
        assert (rows.row_lengths.dtype, rows.begins.dtype) == (torch.int32, torch.bool)
        seen.append(rows)
        return first_pass(builder, batch, table, rows)

    def ended(builder: RecurrentBuilder, built: Any, rows: Any) -> Any:
        assert rows is seen[-1]
        return finished(builder, built, rows)

    monkeypatch.setattr(RecurrentBuilder, "first_pass", begun)
    monkeypatch.setattr(RecurrentBuilder, "finished", ended)
    for _ in range(6):
        engine.step()
    assert len(seen) == 6


@torch.inference_mode()
@pytest.mark.parametrize("kind", [*KINDS, "mask"])
def test_what_a_strategy_makes_lies_where_the_plan_lies(kind: str) -> None:
    """Hosts set a default device while they load models."""
    engine = Engine(Case(kind, K), seed=5)
    planner = Planner(engine.draft, engine.plan, engine.needs)
    strategy: Any = engine.proposal.strategy
    with torch.device("meta"):
        if kind == "recurrent":
            made = strategy.states
            states = RecurrentGroups(made.groups, made._tables, made.requests, made.speculative)
            strategy = RecurrentStrategy(planner, states, strategy._for_graph)
        elif kind == "mask":
            strategy = MaskTokensStrategy(engine.draft, engine.plan, engine.needs, MASK)
        else:
            strategy = AttentionStrategy(planner)
    engine.proposal.strategy = strategy
    passes: Any = []
    run: Any = engine.proposal.run

    def noted(planned: Any) -> Any:
        passes.append(planned)
        return run(planned)

    engine.proposal.run = noted  # type: ignore[method-assign]
    for _ in range(8):
        engine.step()
    assert engine.judged > K
    assert {one.sample_rows.dtype for one in passes} == {torch.int32}
    sampled = {None if one.sampled is None else one.sampled.dtype for one in passes}
    assert sampled == {torch.int64 if kind == "recurrent" else None}


def batches_of(engine: Engine, steps: int) -> list[tuple[PassBatch, Any, list[list[int]]]]:
    """What metadata is made of in each step: batch, cos_sin rows, and slots as they are then."""
    seen = []
    made = Needs.first_pass

    def first_pass(needs: Needs, batch: PassBatch, rows: Any) -> Any:
        # Tensors of the batch are views of buffers, which the next step overwrites.
        seen.append((batch, rows, [slots.tolist() for slots in batch.slots]))
        return made(needs, batch, rows)

    with patch.object(Needs, "first_pass", first_pass):
        for _ in range(steps):
            engine.step()
    return seen


@torch.inference_mode()
@pytest.mark.parametrize("rotates", [False, True])
@pytest.mark.parametrize(("kind", "size"), [("mask", 1 + K), ("anchor", K)])
def test_the_window_is_one_pass_of_equal_rows(kind: str, size: int, rotates: bool) -> None:
    engine = Engine(Case(kind, K, (4, 8), (True, True), (rotates, rotates)), seed=1)
    seen = batches_of(engine, 12)
    assert len(seen) == 12
    assert {batch.requests for batch, _, _ in seen} > {MOST_REQUESTS}
    for batch, cos_sin, slots in seen:
        starts = [size * request for request in range(batch.requests + 1)]
        assert (batch.index, batch.rows, batch.input_rows) == (0, starts[-1], starts[-1])
        assert (batch.longest_row, batch.causal, batch.rows_across_ranks) == (size, False, None)
        for found in (batch.query_start_loc, batch.query_start_loc_host):
            assert found.tolist() == starts
            assert found.dtype == torch.int32
        # All tokens of a window attend to all of it: their lengths are that of the last.
        for lengths in (batch.lengths, batch.host_lengths, batch.length_bounds):
            assert lengths is batch.lengths
            assert len(lengths) == batch.requests
        assert [len(group) for group in slots] == [batch.rows] * 2
        assert (cos_sin is None) == (not rotates)


@torch.inference_mode()
def test_the_window_knows_the_step_and_the_rows_of_other_ranks() -> None:
    engine = Engine(Case("mask", K), seed=1)
    step, ranks = object(), torch.tensor([8, 4])
    made = MaskTokensStrategy.plan

    def plan(strategy: MaskTokensStrategy, target: Any, rows: int) -> Any:
        return made(strategy, replace(target, common=step), rows)

    with (
        patch.object(FakeDraft, "share_rows", lambda _, rows: (rows, ranks)),
        patch.object(MaskTokensStrategy, "plan", plan),
    ):
        batch, _, _ = batches_of(engine, 1)[0]
    assert batch.common is step
    assert batch.rows_across_ranks is ranks


@torch.inference_mode()
def test_lengths_are_those_of_the_last_token_of_the_window() -> None:
    """They are known only once the host has waited; before, the batch has other ones."""
    engine = Engine(Case("mask", K), seed=2)
    proposed = []
    made = Needs.first_pass

    def first_pass(needs: Needs, batch: PassBatch, rows: Any) -> Any:
        proposed.append((batch.lengths.tolist(), batch.positions.tolist()))
        return made(needs, batch, rows)

    with patch.object(Needs, "first_pass", first_pass):
        for _ in range(8):
            engine.step()
    for lengths, positions in proposed:
        assert lengths == [place + 1 for place in positions[K :: K + 1]]

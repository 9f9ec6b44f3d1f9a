# SPDX-License-Identifier: Apache-2.0
"""Which graph serves a batch, and what a replay waits for.

A fake device does its work in the order of the program. So a wait that is missing changes no token
here, and the order of the calls is all that can show it.
"""

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from mkv_ascend.drafting.counts import Eager, ProposalCounts
from mkv_ascend.drafting.draft import TargetOutput
from mkv_ascend.drafting.graph_runner import CapturedPasses, GraphRunner, GraphShape, InStep
from mkv_ascend.drafting.plan import DraftPlan, Sizes
from tests.unit.drafting.fake_engine import Case, Engine

K, REQUESTS = 4, 3
COPIED = ("the stream waits for copied drafts",)


class Called(list[Any]):
    """Notes of calls, in their order."""

    def noting(self, note: str, answer: Any = None) -> Any:
        def call(*arguments: Any) -> Any:
            self.append((note, *arguments))
            return answer

        return call


def verify_step(*tokens: int) -> TargetOutput:
    """A batch of rows of so many tokens."""
    starts = torch.tensor([0, *tokens]).cumsum(0).to(torch.int32)
    lengths = torch.arange(10, 10 + len(tokens), dtype=torch.int32)
    none = torch.zeros(len(tokens), dtype=torch.int32)
    return TargetOutput(none, none, none, None, None, starts, starts, lengths, lengths, max(tokens))


def runner(called: Called, later_passes: int = 0, may_replay: bool = True) -> GraphRunner:
    plan = SimpleNamespace(
        sizes=SimpleNamespace(later_passes=later_passes),
        plan_later=called.noting("plan", "later"),
        copy_lengths=called.noting("copy lengths"),
        wait_for_lengths=called.noting("the host waits for lengths"),
        pad_first_pass=called.noting("pad"),
    )
    strategy = SimpleNamespace(
        tokens=K,
        later_passes=later_passes,
        lay_out=called.noting("lay out", 7),
        take_for_graph=called.noting("take"),
        may_replay=called.noting("asked", may_replay),
        lengths=called.noting("lengths", "given"),
    )
    capturer: Any = SimpleNamespace(
        wait_for_replay=called.noting("the host waits for the replay before"),
        wait_for_copied_drafts=called.noting(*COPIED),
    )
    proposal: Any = SimpleNamespace(
        plan=plan, strategy=strategy, draft=None, counts=ProposalCounts()
    )
    return GraphRunner(proposal, capturer)


def replayed(later: int, updates: bool = True, reads: bool = False) -> tuple[Called, Any]:
    """What is called to draft for two requests in a graph for three, and the drafts."""
    called, target = Called(), verify_step(K + 1, K + 1)
    graphs = runner(called, later)
    graph: Any = SimpleNamespace(
        updates_lengths=updates,
        reads_lengths=reads,
        replay=called.noting("replay"),
        update=called.noting("update"),
    )
    drafted = torch.arange(REQUESTS * K).view(REQUESTS, K)
    graphs.captured = {
        GraphShape(REQUESTS, K, K): CapturedPasses(REQUESTS, 20, K, graph, drafted, ())
    }
    result = graphs.propose(target)
    assert graphs.replays == 1
    assert called[:3] == [("asked", target), ("lay out", target, 20), ("take", target, 7)]
    of_lengths = [call for call in called if call[0] == "lengths"]
    assert of_lengths == ([("lengths", target, 1, "later" if later else None)] if updates else [])
    return Called(call for call in called[3:] if call[0] != "lengths"), result


def test_tasks_are_updated_when_the_lengths_of_this_replay_are_on_the_host() -> None:
    """Which they are when the replay before it is over, whose launches are updated no more then."""
    called, result = replayed(later=K - 1)
    assert called == [
        ("plan", REQUESTS, 2),
        ("copy lengths", "later"),
        COPIED,
        ("replay",),
        ("the host waits for lengths",),
        ("update", "given"),
    ]
    assert result.tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_without_later_passes_the_host_waits_for_the_replay_before() -> None:
    called, _ = replayed(later=0)
    assert called == [
        ("the host waits for the replay before",),
        COPIED,
        ("replay",),
        ("update", "given"),
    ]


@pytest.mark.parametrize("later", [0, K])
def test_the_host_waits_for_nothing_where_lengths_are_read_on_the_device(later: int) -> None:
    called, _ = replayed(later, updates=False)
    assert called == [*([("plan", REQUESTS, 2)] if later else []), COPIED, ("replay",)]


def test_padding_is_there_before_a_replay_that_reads_it_on_the_device() -> None:
    called, _ = replayed(later=0, updates=False, reads=True)
    assert called == [("pad", 2, REQUESTS), COPIED, ("replay",)]
    table = torch.zeros(4, 2, dtype=torch.int32)
    plan = DraftPlan(Sizes(0, max_requests=4, max_tokens=16, max_model_len=32), [table], [8])
    plan.first_lengths.fill_(7)
    plan.pad_first_pass(2, REQUESTS)
    assert plan.first_lengths.tolist() == [7, 7, 0, 7]


@pytest.mark.parametrize(
    ("tokens", "may_replay", "graph"),
    [
        ([K + 1], True, 1),
        ([K + 1] * 2, True, 4),
        ([K + 1] * 4, True, 4),
        ([K + 1] * 5, True, Eager.TOO_MANY_REQUESTS),
        ([K + 1, K], True, Eager.MIXED_BATCH),  # fewer drafts to verify
        ([K + 1, K + 2, K], True, Eager.MIXED_BATCH),  # as many tokens, but not of each request
        ([K + 3] * 5, True, Eager.MIXED_BATCH),  # prompts of one length
        ([K + 1] * 2, False, Eager.DRAFT_PREFILL),  # what the strategy itself refuses
    ],
)
def test_a_batch_has_the_smallest_graph_in_which_all_its_requests_verify(
    tokens: list[int], may_replay: bool, graph: int | Eager
) -> None:
    graphs = runner(Called(), may_replay=may_replay)
    captured: dict[GraphShape, Any] = {
        GraphShape(size, K, K): SimpleNamespace(requests=size) for size in (1, 4)
    }
    graphs.captured = captured
    found = graphs.graph_for(verify_step(*tokens))
    assert (found if isinstance(found, Eager) else found.requests) == graph


def test_a_batch_has_the_graph_of_the_number_that_is_drafted_for_it() -> None:
    """One of more draft tokens would do as well, and take their passes."""
    graphs = runner(Called(), later_passes=K - 1)
    captured: Any = {GraphShape(2, K, drafted): str(drafted) for drafted in (1, K)}
    graphs.captured = captured
    found: list[Any] = [graphs.graph_for(verify_step(K + 1), tokens) for tokens in (1, K, None)]
    assert found == ["1", str(K), str(K)]


def test_a_proposal_of_fewer_tokens_is_replayed_from_their_graph() -> None:
    graphs = runner(Called(), later_passes=K - 1)
    graph: Any = SimpleNamespace(
        updates_lengths=False, reads_lengths=False, replay=lambda: None, update=None
    )
    graphs.captured = {
        GraphShape(2, K, drafted): CapturedPasses(
            2, 20, drafted, graph, torch.full((2, drafted), drafted), ()
        )
        for drafted in (1, K)
    }
    drafts = [graphs.propose(verify_step(K + 1, K + 1), tokens) for tokens in (1, K, None)]
    assert [x.tolist() for x in drafts if isinstance(x, torch.Tensor)] == [
        [[1]] * 2,
        [[K] * K] * 2,
        [[K] * K] * 2,
    ]


@pytest.mark.parametrize(
    ("agreed", "graph"), [(1, 1), (2, 4), (4, 4), (5, Eager.OTHER_RANKS), (None, Eager.OTHER_RANKS)]
)
@pytest.mark.parametrize("own", [[K + 1], [K + 1] * 4, [K + 3], []])
def test_ranks_in_step_have_one_graph_whatever_their_own_batch_is(
    own: list[int], agreed: int | None, graph: int | Eager
) -> None:
    graphs = runner(Called())
    captured: dict[GraphShape, Any] = {
        GraphShape(size, K, drafted): SimpleNamespace(requests=size, drafted=drafted)
        for size in (1, 4)
        for drafted in (K, K - 1)
    }
    graphs.captured = captured
    found = graphs.graph_in_step(InStep(agreed))
    assert (found if isinstance(found, Eager) else found.requests) == graph
    assert isinstance(found, Eager) or found.drafted == K
    if isinstance(graph, Eager):
        assert graphs.run_along(InStep(agreed)) is None
        assert not own or graphs.propose(verify_step(*own), None, InStep(agreed)) is graph


@pytest.mark.parametrize("kind", ["attention", "head", "recurrent"])
def test_rows_of_padding_are_those_of_a_verify_step_whatever_was_there_before(kind: str) -> None:
    """Recurrent and sparse layers read on the device where rows begin."""
    engine = Engine(Case(kind, K), graphs=(3,))
    (passes, *_) = engine.graphs.captured[engine.graphs.shape(3)].passes
    each = K + 2 if kind == "attention" else K + 1
    for _ in range(6):
        starts = [request * each for request in range(4)]
        assert passes.batch.query_start_loc.tolist() == starts
        assert passes.batch.query_start_loc_host.tolist() == starts
        with torch.inference_mode():
            engine.step()


def test_row_indices_of_an_earlier_batch_stay_in_bounds() -> None:
    """A graph samples from rows of padding too, whose indices may be of a longer pass."""
    engine = Engine(Case("attention", K))
    with torch.inference_mode():
        engine.graphs.capture(engine.graphs.shape(2))
        engine.draft.buffers.sample_rows.fill_(1000)
        graph: Any = engine.graphs.captured[engine.graphs.shape(2)].graph
        graph.recorder.run()
    assert int(engine.draft.buffers.sample_rows[:2].max()) < 2 * (K + 2)


@pytest.mark.parametrize(("tokens", "captures"), [(REQUESTS * (K + 2), 1), (17, 0)])
@pytest.mark.parametrize("shift", [False, True])
def test_no_graph_for_a_first_pass_that_buffers_cannot_hold(
    tokens: int, captures: int, shift: bool
) -> None:
    """A step of 17 tokens holds 3 verify steps of 5, and no 3 rows more; a head has no more."""
    called = Called()
    graphs = runner(called)
    sizes: Any = Sizes(K - 1, REQUESTS, tokens, 32, shift=shift)
    graphs.proposal.plan = SimpleNamespace(sizes=sizes)  # type: ignore[assignment]
    graphs.capturer.measuring = nullcontext  # type: ignore[method-assign, assignment]
    graphs._captured = called.noting("capture")  # type: ignore[method-assign]
    graphs.capture(GraphShape(REQUESTS, K, K))
    assert len(graphs.captured) == len(called) == (1 if shift else captures)

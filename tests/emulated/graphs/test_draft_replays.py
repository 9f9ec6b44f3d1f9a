# SPDX-License-Identifier: Apache-2.0
"""Which graph serves a batch, and what a replay waits for; without an engine.

On the emulated device work of all streams is done in the order of the program. So a wait that is
missing changes no token here, and the order of the calls is all that can show it.
"""

import functools
from types import SimpleNamespace

import pytest
import torch
import torch_npu
import vllm_ascend.ops  # noqa: F401  before the rest of it: its modules import in a circle

from mkv_ascend.drafting.graphs import CapturedPasses, DraftGraphs
from mkv_ascend.drafting.plan import DraftPlan, Sizes
from mkv_ascend.drafting.replaying import Replaying

K, REQUESTS = 4, 3
WAITS_FOR_THE_LAST_DRAFTS = ("the stream waits for", "copied drafts")


class Called(list):
    """Notes of calls, in their order."""

    def noting(self, note, answer=None):
        def call(*arguments):
            self.append((note, *arguments))
            return answer

        return call


def replayed(monkeypatch, drafted, live, update_calls=("one",)):
    """What is called to draft so many tokens for each of ``live`` requests, and the drafts."""
    called = Called()
    stream = SimpleNamespace(
        wait_event=called.noting("the stream waits for"),
        synchronize=called.noting("the host waits for the stream"),
    )
    monkeypatch.setattr(torch_npu.npu, "current_stream", lambda: stream)
    proposer = SimpleNamespace(
        draft_plan=SimpleNamespace(
            sizes=SimpleNamespace(later_steps=drafted - 1),
            plan_steps=called.noting("plan", "steps"),
        ),
        copy_lengths=called.noting("copy lengths"),
        wait_for_lengths=called.noting("the host waits for lengths"),
        lengths_of_passes=lambda first, steps: [first, [7] * len(first)],
        runner=SimpleNamespace(draft_token_ids_event="copied drafts"),
        vllm_config="config",
    )
    graphs = DraftGraphs(proposer)
    passes = CapturedPasses(
        requests=REQUESTS,
        rows=REQUESTS * (drafted + 2),
        graph=SimpleNamespace(replay=called.noting("replay")),
        drafted=torch.arange(REQUESTS * drafted).view(REQUESTS, drafted),
        updates=SimpleNamespace(
            calls=update_calls, run=lambda *given: called.append(("update", *given[1:]))
        ),
        passes=None,
        context="context",
        reads_lengths=False,
    )
    result = graphs.replay(passes, live, list(range(10, 10 + live)))
    assert graphs.replays == 1
    return called, result


def test_tasks_are_updated_when_the_lengths_of_this_replay_are_on_the_host(monkeypatch):
    """Which they are when the replay before it is over, whose launches are updated no more then."""
    called, result = replayed(monkeypatch, K, live=2)
    assert called == [
        ("plan", REQUESTS, 2),
        ("copy lengths", "steps"),
        WAITS_FOR_THE_LAST_DRAFTS,
        ("replay",),
        ("the host waits for lengths",),
        ("update", "context", "config", [[10, 11, 0], [7, 7, 7]]),
    ]
    assert result.tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_without_later_passes_the_host_waits_for_the_replay_before(monkeypatch):
    called, result = replayed(monkeypatch, 1, live=3)
    assert called == [
        ("the host waits for the stream",),
        WAITS_FOR_THE_LAST_DRAFTS,
        ("replay",),
        ("update", "context", "config", [[10, 11, 12]]),
    ]
    assert result.tolist() == [[0], [1], [2]]


@pytest.mark.parametrize("drafted", [1, K])
def test_the_host_waits_for_nothing_where_lengths_are_read_on_the_device(monkeypatch, drafted):
    called, result = replayed(monkeypatch, drafted, live=2, update_calls=())
    planned = [("plan", REQUESTS, 2)] if drafted > 1 else []
    assert called == [*planned, WAITS_FOR_THE_LAST_DRAFTS, ("replay",)]
    assert result.shape == (2, drafted)


@pytest.mark.parametrize(
    ("tokens", "may_replay", "graph"),
    [
        ([K + 1], True, "for 1"),
        ([K + 1] * 2, True, "for 4"),
        ([K + 1] * 4, True, "for 4"),
        ([K + 1] * 5, True, None),  # more than there is a graph for
        ([K + 1, K], True, None),  # fewer drafts to verify
        ([K + 1, K + 2, K], True, None),  # as many tokens, but not of each request
        ([K + 1] * 2, False, None),  # what the draft itself refuses
    ],
)
def test_a_batch_has_the_smallest_graph_in_which_all_its_requests_verify(tokens, may_replay, graph):
    common = SimpleNamespace(query_start_loc_cpu=torch.tensor([0, *tokens, 0]).cumsum(0))
    asked = Called()
    graphs = DraftGraphs(
        SimpleNamespace(num_speculative_tokens=K, may_replay=asked.noting("asked", may_replay))
    )
    graphs.captured = {1: "for 1", 4: "for 4"}
    assert graphs.for_batch(common, len(tokens)) == graph
    assert all(call == ("asked", common, len(tokens)) for call in asked)


class Planned(Replaying):
    """A draft model of K tokens on one KV group, that captures no more than common metadata."""

    def __init__(self):
        sizes = Sizes(later_steps=K - 1, max_requests=4, max_tokens=64, max_model_len=64)
        table = torch.zeros(4, 8, dtype=torch.int32, device="npu")
        whole = functools.partial(torch.zeros, 64, dtype=torch.int32, device="npu")
        self.draft_plan, self.device = DraftPlan(sizes, [table], [8]), table.device
        self.draft_groups = SimpleNamespace(kv_groups=(0,))
        tables = [SimpleNamespace(get_device_tensor=lambda: table)]
        self.runner = SimpleNamespace(
            positions=whole(), input_batch=SimpleNamespace(block_table=tables)
        )
        self.num_speculative_tokens, self.net_num_new_slots_per_request = K, 1
        self.uses_mrope = self.parallel_drafting = False
        self.input_ids, self.token_indices_to_sample = whole(), whole()
        self.positions = self._sequence_positions = whole()
        self._count = torch.arange(5, dtype=torch.int32)

    def _plan_passes(self, common, *_):
        return common

    def prefill(self, tokens):
        """Lay out an eager first pass of so many tokens for each request."""
        starts = torch.tensor([0, *tokens], dtype=torch.int32).cumsum(0, dtype=torch.int32)
        rows, requests = sum(tokens), len(tokens)
        common = SimpleNamespace(query_start_loc=starts.npu())
        given = torch.zeros(rows + requests, dtype=torch.int32, device="npu")
        self._set_first_pass(given[:rows], given[:rows], given[rows:], common, None)


def test_rows_of_padding_are_as_long_as_those_of_a_verify_step_whatever_was_there_before():
    """Recurrent and sparse layers read on the device where rows begin."""
    draft = Planned()
    rows, common = draft.passes_to_capture(REQUESTS)
    each = K + 2  # with what the target sampled
    assert rows == REQUESTS * each
    for batch in ([1, 1, 1, 1], [20, 7, 9], [K + 1]):
        draft.prefill(batch)
        starts = [request * each for request in range(REQUESTS + 1)]
        assert common.query_start_loc.tolist() == starts
        assert common.query_start_loc_cpu.tolist() == starts

# SPDX-License-Identifier: Apache-2.0
"""Replays that wait for events, and updates of single tasks, as vllm-ascend uses them."""

import pytest
import torch

from emulated_npu import counters
from tests.emulated.device.graph_helpers import (
    add,
    captured,
    on_npu,
    update,
)


def test_a_replay_stops_at_the_event_and_goes_on_when_it_is_recorded(parts):
    parts.graph.replay()
    assert not parts.event.is_set
    update(parts, lambda: add(parts, 5))
    assert parts.result.tolist() == [60, 70]
    # The graph reset its event: the next replay stops again.
    parts.graph.replay()
    update(parts, lambda: add(parts, 6))
    assert parts.result.tolist() == [70, 80]


def test_an_update_before_the_replay(parts):
    update(parts, lambda: add(parts, 5))
    parts.graph.replay()
    assert parts.result.tolist() == [60, 70]


def test_an_update_takes_new_addresses(parts):
    other = on_npu(100, 200)
    parts.graph.replay()
    update(parts, lambda: torch.add(other, 5, out=parts.out))
    assert parts.result.tolist() == [1050, 2050]


def test_an_update_runs_nothing_itself(parts):
    before = counters.snapshot()
    update(parts, lambda: add(parts, 5), record=False)
    assert parts.out.tolist() == [0, 0]
    assert (counters.snapshot() - before).launches["graph_task_update"] == 1
    assert "aten::add" not in (counters.snapshot() - before).launches


def test_work_behind_a_replay_that_waits_runs_once_after_it(parts):
    behind, more = on_npu(0, 0), on_npu(1000, 1000)
    parts.graph.replay()
    behind.add_(parts.result + 1)
    parts.graph.replay()
    behind.add_(parts.result)
    torch.add(behind, more, out=behind)
    del more  # its memory is the launch's until that has run
    update(parts, lambda: add(parts, 5))
    update(parts, lambda: add(parts, 6))
    assert behind.tolist() == [61 + 70 + 1000, 71 + 80 + 1000]


def test_an_event_that_is_recorded_without_an_update_runs_the_old_task(parts):
    parts.graph.replay()
    update(parts, lambda: add(parts, 5))
    parts.graph.replay()
    parts.event.record(parts.stream)
    assert parts.result.tolist() == [60, 70]


WAITS = {
    "stream": lambda parts: torch.npu.current_stream().synchronize(),
    "device": lambda parts: torch.npu.synchronize(),
    "item": lambda parts: parts.result[0].item(),
    "cpu": lambda parts: parts.result.cpu(),
    "blocking copy": lambda parts: parts.result.copy_(torch.zeros(2)),
}


@pytest.mark.parametrize("name", WAITS)
@pytest.mark.parametrize("updated", [False, True], ids=["forgotten", "not recorded"])
def test_a_host_that_waits_for_a_replay_that_waits(parts, name, updated):
    parts.graph.replay()
    if updated:
        update(parts, lambda: add(parts, 5), record=False)
    with pytest.raises(RuntimeError, match=r"deadlock: .*graph_helpers\.py:\d+"):
        WAITS[name](parts)


def test_another_stream_that_waits_is_refused(parts):
    parts.graph.replay()
    with pytest.raises(NotImplementedError, match="waits for a stream that itself waits"):
        torch.npu.Stream().wait_stream(torch.npu.current_stream())


MISMATCHES = {
    "operator": lambda parts: torch.mul(parts.source, 5, out=parts.out),
    "none": lambda parts: None,
    "two": lambda parts: (add(parts, 5), add(parts, 5)),
}


@pytest.mark.parametrize("name", MISMATCHES)
def test_an_update_that_does_not_match(parts, name):
    with pytest.raises(RuntimeError, match=r"task update with .*captured.*graph_helpers\.py:\d+"):
        update(parts, lambda: MISMATCHES[name](parts))
    # The stream runs its launches again.
    with torch.npu.stream(parts.stream):
        assert on_npu(1).add_(1).tolist() == [2]


def test_an_update_after_the_launch():
    """The second of two groups is waited for; the first was launched."""
    events, out = [torch.npu.ExternalEvent() for _ in range(2)], on_npu(0)
    updates = torch.npu.Stream()

    def launches():
        stream, groups = torch.npu.current_stream(), []
        for event in events:
            event.wait(stream)
            event.reset(stream)
            torch.npu.graph_task_group_begin(stream)
            torch.add(out, 1, out=out)
            groups.append(torch.npu.graph_task_group_end(stream))
        return groups

    graph, (first, _) = captured(launches)
    graph.replay()
    events[0].record(updates)
    with pytest.raises(RuntimeError, match="has launched already"):
        torch.npu.graph_task_update_begin(updates, first)
    events[1].record(updates)
    assert out.tolist() == [2]


def test_a_launch_that_fails_leaves_no_stream_waiting(parts):
    operands = [on_npu(1, 2)]
    parts.graph.replay()
    update(parts, lambda: torch.add(operands[0], 1, out=parts.out), record=False)
    operands.clear()
    with pytest.raises(RuntimeError, match="freed since the capture"):
        parts.event.record(parts.stream)
    assert on_npu(1).item() == 1


def test_task_groups_only_where_they_can_be():
    stream = torch.npu.Stream()
    with pytest.raises(RuntimeError, match="not being captured"):
        torch.npu.graph_task_group_begin(stream)
    with pytest.raises(RuntimeError, match="without graph_task_update_begin"):
        torch.npu.graph_task_update_end(stream)
    with pytest.raises(RuntimeError, match="inside a task group"):
        captured(_two_open_groups)


def _two_open_groups():
    stream = torch.npu.current_stream()
    torch.npu.graph_task_group_begin(stream)
    torch.npu.graph_task_group_begin(stream)


def test_an_event_outside_graphs():
    event, target = torch.npu.ExternalEvent(), on_npu(0)
    event.wait()
    target.add_(1)
    event.record(torch.npu.Stream())
    assert target.tolist() == [1]
    event.wait()
    assert target.tolist() == [1]

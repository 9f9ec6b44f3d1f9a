# SPDX-License-Identifier: Apache-2.0
"""Threads of the host that wait for a graph which another thread lets go on."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from tests.emulated.device.graph_helpers import UpdatableGraph, add, on_npu, updatable, update


@pytest.fixture
def other_thread():
    with ThreadPoolExecutor(1) as pool:
        yield pool


def _event_behind_two_replays(parts: UpdatableGraph) -> None:
    behind = torch.npu.Event()
    behind.record()
    parts.graph.replay()
    behind.synchronize()


WAITS = {
    "stream": lambda parts: torch.npu.current_stream().synchronize(),
    "device": lambda parts: torch.npu.synchronize(),
    "event": _event_behind_two_replays,
    "item": lambda parts: parts.result[0].item(),
    "cpu": lambda parts: parts.result.cpu(),
    "blocking copy": lambda parts: parts.source.copy_(torch.ones(2)),
    "nonzero": lambda parts: parts.result.nonzero(),
}


@pytest.mark.parametrize("name", WAITS)
def test_another_thread_waits_until_the_graph_has_run(parts, other_thread, name):
    parts.graph.replay()
    result = parts.result

    def wait():
        WAITS[name](parts)
        return torch.tensor(result.tolist())

    waiting = other_thread.submit(wait)
    time.sleep(0.3)
    assert not waiting.done()
    update(parts, lambda: add(parts, 5))
    if name == "event":
        update(parts, lambda: add(parts, 5))
    assert waiting.result(timeout=30).tolist() == [60, 70]


@pytest.mark.parametrize("name", ["stream", "event"])
def test_a_stream_without_work_is_no_deadlock_while_another_one_waits(parts, name):
    """The stream of a thread that moves experts, whose current stream is the one of the graphs."""
    parts.graph.replay()
    stream = torch.npu.Stream()
    with torch.npu.stream(stream):
        copy = on_npu(3) + 1
    if name == "stream":
        stream.synchronize()
    else:
        stream.record_event().synchronize()
    with torch.npu.stream(stream):
        assert copy.tolist() == [4]


def test_a_thread_that_ended_records_nothing(parts, other_thread):
    launched, may_end = threading.Event(), threading.Event()

    def launch():
        parts.graph.replay()
        launched.set()
        may_end.wait(30)

    launching = threading.Thread(target=launch)
    launching.start()
    assert launched.wait(30)
    waiting = other_thread.submit(torch.npu.synchronize)
    time.sleep(0.3)
    assert not waiting.done()
    may_end.set()
    launching.join()
    with pytest.raises(RuntimeError, match="deadlock"):
        waiting.result(timeout=30)
    with pytest.raises(RuntimeError, match="deadlock"):
        torch.npu.synchronize()


def test_threads_that_wait_for_each_other(parts, other_thread):
    own, its = torch.npu.current_stream(), torch.npu.Stream()
    second, launched = updatable(), threading.Event()
    parts.graph.replay()

    def launch_and_wait():
        with torch.npu.stream(its):
            second.graph.replay()
        launched.set()
        own.synchronize()

    waiting = other_thread.submit(launch_and_wait)
    assert launched.wait(30)
    time.sleep(0.3)
    with pytest.raises(RuntimeError, match="deadlock"):
        its.synchronize()
    assert not waiting.done()
    update(parts, lambda: add(parts, 5))
    waiting.result(timeout=30)
    # Now that one is no longer bound to wait, so this one may.
    second.event.record(second.stream)
    its.synchronize()


def test_an_event_behind_a_replay_that_waits_has_not_come(parts):
    parts.graph.replay()
    behind = torch.npu.Event()
    behind.record()
    parts.graph.replay()
    assert not behind.query()
    update(parts, lambda: add(parts, 5))
    assert behind.query()


def test_nobody_waits_for_what_is_behind_a_launch_that_failed(parts, other_thread):
    operands = [on_npu(1, 2)]
    parts.graph.replay()
    waiting = other_thread.submit(torch.npu.synchronize)
    update(parts, lambda: torch.add(operands[0], 1, out=parts.out), record=False)
    operands.clear()
    with pytest.raises(RuntimeError, match="freed since the capture"):
        parts.event.record(parts.stream)
    waiting.result(timeout=30)

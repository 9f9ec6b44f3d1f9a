# SPDX-License-Identifier: Apache-2.0
"""Mistakes with graphs that a device punishes; here each is an error that names its place."""

import re
from pathlib import Path

import pytest
import torch

from emulated_npu.device.streams import Event
from tests.emulated.device.graph_helpers import captured, capturing, on_npu

HERE = rf"{re.escape(Path(__file__).name)}:\d+"

HOST_READS = {
    "item": lambda x: x[0].item(),
    "bool": lambda x: bool(x[0]),
    "cpu": lambda x: x.cpu(),
    "tolist": lambda x: x.tolist(),
    "nonzero": lambda x: x.nonzero(),
    "mask index": lambda x: x[x > 0],
    "masked select": lambda x: x.masked_select(x > 0),
    "unique": lambda x: x.unique(),
    "unique of neighbours": lambda x: torch.unique_consecutive(x),
    "repeat": lambda x: torch.repeat_interleave(x, x.long()),
    "equal": lambda x: torch.equal(x, x),
    "count": lambda x: torch.bincount(x.long()),
}


@pytest.mark.parametrize("name", HOST_READS)
def test_what_needs_a_value_of_the_device(name):
    source = on_npu(1, 2)
    with pytest.raises(RuntimeError, match=f"{HERE}.* during graph capture"), capturing():
        HOST_READS[name](source)
    assert source.tolist() == [1, 2]


def test_a_repetition_of_known_size_needs_none():
    source, counts = on_npu(1, 2), torch.tensor([2, 1]).npu()
    graph, result = captured(lambda: torch.repeat_interleave(source, counts, output_size=3))
    graph.replay()
    assert result.tolist() == [1, 1, 2]


WAITS = {
    "stream": lambda: torch.npu.current_stream().synchronize(),
    "device": lambda: torch.npu.synchronize(),
    "accelerator": lambda: torch._C._accelerator_synchronizeDevice(0),
    "event": lambda: _event().synchronize(),
    "query": lambda: _event().query(),
    "stream query": lambda: torch.npu.current_stream().query(),
}


def _event():
    event = Event()
    event.record()
    return event


@pytest.mark.parametrize("name", WAITS)
def test_waiting(name):
    with pytest.raises(RuntimeError, match=f"{HERE}.* during graph capture"), capturing():
        WAITS[name]()
    WAITS[name]()


COPIES = {
    "pageable": lambda x: x.copy_(torch.zeros(2), non_blocking=True),
    "blocking": lambda x: x.copy_(torch.zeros(2).pin_memory()),
    "dtype": lambda x: x.copy_(torch.zeros(2).double().pin_memory(), non_blocking=True),
    "layout": lambda x: x.copy_(torch.zeros(4).pin_memory()[::2], non_blocking=True),
    "to the host": lambda x: torch.zeros(2).copy_(x, non_blocking=True),
    "new tensor": lambda x: torch.tensor([1, 2], device="npu"),
    "index": lambda x: x[torch.tensor([0])],
}


@pytest.mark.parametrize("name", COPIES)
def test_host_memory(name):
    source = on_npu(1, 2)
    with pytest.raises(RuntimeError, match=f"{HERE}.* during graph capture"), capturing():
        COPIES[name](source)
    assert source.tolist() == [1, 2]


def test_a_host_tensor_as_operand(lenient_devices):
    """Even where devices may be mixed. Most operators refuse it themselves, captured or not."""
    source = on_npu(1, 2)
    with pytest.raises(RuntimeError, match=f"{HERE}.* during graph capture"), capturing():
        torch.where(source > 0, source, torch.zeros(2))
    with pytest.raises(RuntimeError, match="on the same device"), capturing():
        torch.add(source, torch.zeros(2))


def test_a_buffer_that_was_freed_is_named():
    """A buffer made anew each step: the graph has the address of the first one."""
    buffer = on_npu(1, 2)
    address = buffer.data_ptr()
    graph = captured(lambda: buffer.mul_(2))[0]
    buffer = on_npu(3, 4)
    with pytest.raises(
        RuntimeError, match=rf"aten::mul.* \(captured at .*{HERE}\) .* freed .*{address:#x}"
    ):
        graph.replay()
    assert buffer.tolist() == [3, 4]


def test_pinned_memory_that_was_freed_is_named():
    pinned, target = [torch.zeros(2).pin_memory()], on_npu(1, 2)
    graph, _ = captured(lambda: target.copy_(pinned[0], non_blocking=True))
    pinned.clear()
    others = [torch.zeros(2).pin_memory() for _ in range(50)]
    with pytest.raises(RuntimeError, match=rf"copy_ \(captured at .*{HERE}\) .*pinned.* freed"):
        graph.replay()
    del others


def fork(side, source):
    side.wait_stream(torch.npu.current_stream())
    with torch.npu.stream(side):
        source.add_(1)


def test_an_unjoined_stream():
    source, side = on_npu(1, 2), torch.npu.Stream()
    with pytest.raises(RuntimeError, match=f"unjoined.*{HERE}"):
        captured(lambda: fork(side, source))
    # Both streams run their launches again.
    with torch.npu.stream(side):
        source.add_(1)
    assert source.tolist() == [2, 3]


def join_and_go_on(side, source):
    fork(side, source)
    torch.npu.current_stream().wait_stream(side)
    with torch.npu.stream(side):
        source.add_(1)


def test_work_after_the_join_is_unjoined():
    source, side = on_npu(1, 2), torch.npu.Stream()
    with pytest.raises(RuntimeError, match="unjoined"):
        captured(lambda: join_and_go_on(side, source))


def test_a_join_over_a_third_stream_counts():
    source, side, third = on_npu(1, 2), torch.npu.Stream(), torch.npu.Stream()

    def launches():
        fork(side, source)
        third.wait_stream(side)
        torch.npu.current_stream().wait_stream(third)

    captured(launches)


def test_a_capture_inside_a_capture():
    with pytest.raises(RuntimeError, match="inside another capture"), capturing(), capturing():
        pass
    assert not torch.npu.is_current_stream_capturing()


def test_a_replay_inside_a_capture():
    source = on_npu(1, 2)
    graph, _ = captured(lambda: source.add_(1))
    with pytest.raises(RuntimeError, match="inside a capture"), capturing():
        graph.replay()


def test_a_capture_on_the_default_stream():
    with pytest.raises(RuntimeError, match="default stream"):
        torch.npu.NPUGraph().capture_begin()
    with torch.npu.stream(torch.npu.default_stream()):
        assert not torch.npu.is_current_stream_capturing()


def test_a_graph_without_a_capture():
    with pytest.raises(RuntimeError, match="holds no capture"):
        torch.npu.NPUGraph().replay()
    with pytest.raises(RuntimeError, match="without capture_begin"):
        torch.npu.NPUGraph().capture_end()

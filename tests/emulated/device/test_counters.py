# SPDX-License-Identifier: Apache-2.0
"""The device counts launches, host reads with their place, and copied bytes, exactly."""

from __future__ import annotations

import inspect
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from emulated_npu import counters
from emulated_npu.counters import CounterSnapshot


def counted(program: Callable[[], object]) -> CounterSnapshot:
    before = counters.snapshot()
    program()
    return counters.snapshot() - before


def test_launches_by_operator() -> None:
    x = torch.ones(4, 4, device="npu")

    def program() -> None:
        y = x @ x
        y.add_(1)
        torch.add(y, x, out=y)
        torch.flip(y, [0])

    counts = counted(program)
    assert counts.launches == {"aten::mm": 1, "aten::add": 2, "aten::flip": 1}
    assert counts.host_reads == {}
    assert (counts.bytes_to_device, counts.bytes_to_host) == (0, 0)


def test_views_and_allocation_are_not_launches() -> None:
    x = torch.ones(4, 4, device="npu")

    def program() -> None:
        torch.empty(8, device="npu")
        torch.empty_like(x)
        x.new_empty(3)
        x.view(2, 8).t()[1:].unsqueeze(0).expand(3, -1, -1)
        x.view(torch.int32)
        x.as_strided((2,), (1,))
        x.unfold(0, 2, 1)
        x.chunk(2)
        x.detach()
        torch.empty(0, device="npu").set_(x)

    assert counted(program).launches == {}


def test_fills_and_copies_are_launches() -> None:
    x = torch.empty(4, device="npu")

    def program() -> None:
        x.zero_()
        x.fill_(2)
        x.clone()
        x.to(torch.float16)
        torch.zeros(3, device="npu")

    counts = counted(program)
    assert counts.launches["aten::copy_"] == 2
    assert sum(counts.launches.values()) == 5


def test_bytes_each_way() -> None:
    host = torch.ones(3, 5, dtype=torch.float16)
    counts = counted(lambda: host.to("npu"))
    assert (counts.bytes_to_device, counts.bytes_to_host) == (30, 0)
    assert counts.host_reads == {}
    device = torch.ones(7, dtype=torch.int64, device="npu")
    counts = counted(lambda: device.cpu())
    assert (counts.bytes_to_device, counts.bytes_to_host) == (0, 56)
    counts = counted(lambda: device.to("npu:1"))
    assert (counts.bytes_to_device, counts.bytes_to_host) == (0, 0)


def here() -> str:
    """``file:line`` of the caller, as the counters name it."""
    frame = inspect.stack()[1]
    return f"{Path(frame.filename).name}:{frame.lineno}"


@pytest.mark.parametrize(
    ("read", "num_bytes"),
    [
        (lambda x: x[0].item(), 8),
        (lambda x: int(x[1]), 8),
        (lambda x: bool(x[1] > 0), 1),
        (lambda x: x.tolist(), 24),
        (lambda x: x.cpu(), 24),
        (lambda x: x.to("cpu"), 24),
        (lambda x: torch.empty(3, dtype=torch.int64).copy_(x), 24),
        (lambda x: torch.equal(x, x), 8),
        (lambda x: x[x > 1], 8),
        (lambda x: x.nonzero(), 8),
        (lambda x: torch.repeat_interleave(x), 8),
    ],
    ids=[
        "item", "int", "bool", "tolist", "cpu", "to", "copy_", "equal", "mask", "nonzero", "repeat",
    ],
)  # fmt: skip
def test_a_host_read_is_counted_once_where_it_is_asked_for(read, num_bytes: int) -> None:
    x = torch.arange(3, device="npu")
    before = counters.snapshot()
    result, place = read(x), here()
    reads = (counters.snapshot() - before).host_reads
    assert result is not None
    # The innermost frame is the lambda's, in this file.
    assert [(key.rsplit("/", 1)[-1].split(":")[0], read) for key, read in reads.items()] == [
        (place.split(":")[0], (1, num_bytes))
    ]


def test_the_place_is_the_line_of_the_caller() -> None:
    x = torch.arange(3, device="npu")
    before = counters.snapshot()
    expected = []
    expected.append((x[0].item(), here())[1])
    for _ in range(2):
        expected.append((x.tolist(), here())[1])
    reads = (counters.snapshot() - before).host_reads
    assert {key.rsplit("/", 1)[-1]: read for key, read in reads.items()} == {
        expected[0]: (1, 8),
        expected[1]: (2, 48),
    }


def test_reads_without_waiting_are_told_apart() -> None:
    x = torch.arange(3, device="npu")
    pinned = torch.empty(3, dtype=torch.int64, pin_memory=True)
    plain = torch.empty(3, dtype=torch.int64)
    counts = counted(lambda: pinned.copy_(x, non_blocking=True))
    assert (counts.total_host_reads, len(counts.asynchronous_reads)) == (0, 1)
    assert counts.bytes_to_host == 24
    counts = counted(lambda: plain.copy_(x, non_blocking=True))
    assert (counts.total_host_reads, len(counts.asynchronous_reads)) == (1, 0)


def test_synchronisation_counts_nothing() -> None:
    stream, event = torch.npu.Stream(), torch.npu.Event()

    def program() -> None:
        event.record(stream)
        stream.wait_event(event)
        torch.npu.current_stream().wait_stream(stream)
        torch.npu.synchronize()

    assert counted(program) == CounterSnapshot(peak_memory=counters.snapshot().peak_memory)


def test_operators_in_python_are_counted_with_the_others() -> None:
    def program() -> None:
        counters.record_launch("npu_example")
        counters.record_copy("to_device", 5)
        counters.record_copy("to_host", 7)
        torch.ones(1, device="npu")

    counts = counted(program)
    assert counts.launches == {"npu_example": 1, "aten::fill_": 1}
    assert (counts.bytes_to_device, counts.bytes_to_host) == (5, 7)


def test_peak_memory_and_reset() -> None:
    counters.reset()
    in_use = torch.npu.memory_allocated()
    x = torch.empty(2**20, dtype=torch.uint8, device="npu")
    del x
    assert counters.snapshot().peak_memory[0] == in_use + 2**20
    assert counters.snapshot().total_launches == 0
    counters.reset()
    assert counters.snapshot().peak_memory[0] == in_use


PROGRAM = """
import torch
import torch_npu
from emulated_npu import counters
x = torch.randn(20, device="npu")
for _ in range(3):
    x = torch.where(x > 0, x * 2, x - 1).sort().values
    if x.sum().item() > 1e9:
        break
print(x[x > 0].numel() >= 0)
print(counters.report())
"""


def test_counts_are_the_same_on_every_run() -> None:
    runs = [
        subprocess.run(
            [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True
        ).stdout
        for _ in range(2)
    ]
    assert runs[0] == runs[1]
    assert "aten::sort: 3" in runs[0]

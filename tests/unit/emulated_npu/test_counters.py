# SPDX-License-Identifier: Apache-2.0
"""Counting in Python, without a device: places, differences, the report."""

import pytest

from emulated_npu import counters
from emulated_npu.call_place import calling_place
from emulated_npu.counters import CounterSnapshot


@pytest.fixture(autouse=True)
def fresh_counters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counters, "_state", counters._State())


def test_counts_add_up() -> None:
    for name in ("npu_b", "npu_a", "npu_b"):
        counters.record_launch(name)
    counters.record_copy("to_device", 3)
    counters.record_copy("to_device", 4)
    counters.record_copy("to_host", 5)
    counts = counters.snapshot()
    assert counts.launches == {"npu_a": 1, "npu_b": 2}
    assert list(counts.launches) == ["npu_a", "npu_b"]
    assert counts.total_launches == 3
    assert (counts.bytes_to_device, counts.bytes_to_host) == (7, 5)
    counters.reset()
    assert counters.snapshot() == CounterSnapshot()


def test_an_unknown_direction_is_refused() -> None:
    with pytest.raises(ValueError, match="'sideways'; allowed: 'to_device', 'to_host'"):
        counters.record_copy("sideways", 1)  # type: ignore[arg-type]


def test_a_host_read_carries_the_place_of_its_caller() -> None:
    def read() -> str:
        counters.record_host_read(8), counters.record_host_read(4, asynchronous=True)
        return calling_place()

    place = read()
    file, _, line = place.rpartition(":")
    read_place = f"{file}:{int(line) - 1}"
    assert file.endswith("test_counters.py")
    counts = counters.snapshot()
    assert counts.host_reads == {read_place: (1, 8)}
    assert counts.asynchronous_reads == {read_place: (1, 4)}


def test_frames_of_torch_and_of_the_emulator_are_passed_over() -> None:
    import torch

    seen = []

    class Probe(torch.nn.Module):
        def forward(self) -> None:
            # Called through frames of torch.nn; "<string>" is no place either.
            exec("seen.append(calling_place())", {"seen": seen, "calling_place": calling_place})

    Probe()()
    assert len(seen) == 1
    assert "test_counters.py:" in seen[0]
    assert not seen[0].startswith("/"), "a place does not name folders of this machine"


def test_the_difference_of_two_snapshots() -> None:
    earlier = CounterSnapshot(
        launches={"a": 2, "b": 1},
        host_reads={"x.py:1": (1, 8), "y.py:2": (2, 16)},
        bytes_to_device=10,
        peak_memory={0: 100},
    )
    later = CounterSnapshot(
        launches={"a": 5, "b": 1, "c": 1},
        host_reads={"x.py:1": (3, 24), "y.py:2": (2, 16), "z.py:3": (1, 4)},
        asynchronous_reads={"x.py:9": (1, 2)},
        bytes_to_device=15,
        bytes_to_host=7,
        peak_memory={0: 300},
    )
    assert later - earlier == CounterSnapshot(
        launches={"a": 3, "c": 1},
        host_reads={"x.py:1": (2, 16), "z.py:3": (1, 4)},
        asynchronous_reads={"x.py:9": (1, 2)},
        bytes_to_device=5,
        bytes_to_host=7,
        peak_memory={0: 300},
    )
    assert (later - earlier).total_host_reads == 3


def test_the_report_names_everything_most_frequent_first() -> None:
    text = counters.report(
        CounterSnapshot(
            launches={"rare": 1, "often": 7},
            host_reads={"model.py:12": (2, 16)},
            bytes_to_device=5,
            bytes_to_host=6,
            peak_memory={0: 1024, 1: 0},
        )
    )
    assert text == (
        "emulated NPU: 8 launches, 2 host reads, 5 bytes to device, 6 bytes to host\n"
        "  peak memory npu:0: 1024 bytes\n"
        "  launches:\n"
        "    often: 7\n"
        "    rare: 1\n"
        "  host reads:\n"
        "    model.py:12: 2 (16 bytes)\n"
    )

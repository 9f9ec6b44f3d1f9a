# SPDX-License-Identifier: Apache-2.0
"""``torch.npu``: devices, streams, events, switches, and what is refused by name."""

from __future__ import annotations

import importlib.util
import re
import sys
import threading
from pathlib import Path

import pytest
import torch

from emulated_npu.device import install


def test_install_is_idempotent() -> None:
    assert install() is torch.npu
    assert sys.modules["torch.npu"] is torch.npu
    assert torch.version.cann == "9.1.0"


def test_the_device_is_the_accelerator() -> None:
    assert torch.accelerator.current_accelerator() == torch.device("npu")
    assert torch.accelerator.device_count() == torch.npu.device_count()
    torch.accelerator.set_device_index(1)
    assert torch.npu.current_device() == 1
    torch.npu.set_device("npu:0")
    torch.accelerator.synchronize()
    torch.accelerator.empty_cache()
    torch.npu.empty_cache()
    assert torch.accelerator.current_device_index() == 0


def test_device_context_and_names() -> None:
    with torch.npu.device("npu:1"):
        assert torch.npu.current_device() == 1
        with torch.npu.device(-1):
            assert torch.npu.current_device() == 1
    assert torch.npu.current_device() == 0
    with torch.npu.device_of(torch.empty(1, device="npu:1")):
        assert torch.npu.current_device() == 1
    with torch.npu.device_of(torch.empty(1)):
        assert torch.npu.current_device() == 0
    with torch.device("npu:1"):
        assert torch.empty(1).device.index == 1
    assert torch.npu.get_soc_version() == 220
    assert torch.npu.get_device_name().startswith("Ascend910B")
    with pytest.raises(ValueError, match="expected an npu device"):
        torch.npu.set_device("cpu")


def test_a_new_thread_starts_on_device_0() -> None:
    seen = []
    with torch.npu.device(1):
        thread = threading.Thread(target=lambda: seen.append(torch.npu.current_device()))
        thread.start()
        thread.join()
    assert seen == [0]


def test_streams_have_ids_and_a_current_one() -> None:
    first, second = torch.npu.Stream(), torch.npu.Stream(device="npu:1")
    assert len({first.stream_id, second.stream_id, torch.npu.default_stream().stream_id}) == 3
    assert second.device == torch.device("npu:1")
    assert torch.npu.current_stream() == torch.npu.default_stream()
    with torch.npu.stream(first) as entered:
        assert entered is first
        assert torch.npu.current_stream() == first
        assert torch.accelerator.current_stream() == first
        assert torch.npu.current_stream().npu_stream == first.stream_id
        with torch.npu.stream(second):
            assert torch.npu.current_device() == 1
            assert torch.npu.current_stream() == second
            assert torch.npu.current_stream(0) == first
        assert torch.npu.current_stream() == first
        assert torch.npu.current_device() == 0
    with first:
        assert torch.npu.current_stream() == first
    with torch.npu.stream(None):
        assert torch.npu.current_stream() == torch.npu.default_stream()
    torch.npu.set_stream(first)
    assert torch.npu.current_stream() == first
    torch.npu.set_stream(torch.npu.default_stream())
    assert torch.npu.current_stream() == torch.npu.default_stream()


def test_a_stream_context_ends_when_its_body_fails() -> None:
    with pytest.raises(KeyError), torch.npu.stream(torch.npu.Stream()):
        raise KeyError
    assert torch.npu.current_stream() == torch.npu.default_stream()


def test_events() -> None:
    start, end = torch.npu.Event(enable_timing=True), torch.npu.Event(enable_timing=True)
    with pytest.raises(RuntimeError, match="two recorded"):
        start.elapsed_time(end)
    stream = torch.npu.Stream()
    start.record()
    assert stream.record_event(end) is end
    assert start.elapsed_time(end) >= 0.0
    for event in (start, torch.npu.ExternalEvent(), torch.Event(device="npu")):
        event.record(stream)
        stream.wait_event(event)
        event.wait(stream)
        event.synchronize()
        assert event.query()
    other = torch.npu.Stream()
    stream.wait_stream(other)
    stream.synchronize()
    assert stream.query()
    torch.ones(1, device="npu").record_stream(stream)


def test_a_stream_waits_for_an_object_that_behaves_like_one() -> None:
    waited: list[object] = []

    class StandIn:
        def record_event(self) -> StandIn:
            return self

        def wait(self, stream: object) -> None:
            waited.append(stream)

    stream = torch.npu.Stream()
    stream.wait_stream(StandIn())
    stream.wait_stream(torch.Stream(device="npu"))
    assert waited == [stream]


def test_what_is_missing_is_named() -> None:
    assert not hasattr(torch.npu, "no_such_thing")
    with pytest.raises(AttributeError, match=r"emulated NPU has no torch\.npu\.no_such_thing"):
        torch.npu.no_such_thing()
    with pytest.raises(NotImplementedError, match="memory_snapshot"):
        torch.npu.memory_snapshot()


def test_switches() -> None:
    torch.npu.config.allow_internal_format = True
    torch.npu.matmul.allow_hf32 = True
    assert torch.npu.is_bf16_supported()
    with torch.autocast("npu", enabled=False):
        assert torch.ones(1, device="npu").dtype == torch.float32


# Mentioned in a comment only; there is no such function.
NOT_NAMES = {"lightning_indexer"}


def test_every_name_that_vllm_ascend_uses_exists() -> None:
    specification = importlib.util.find_spec("vllm_ascend")
    assert specification is not None
    assert specification.origin is not None
    names = {
        name
        for path in Path(specification.origin).parent.rglob("*.py")
        for name in re.findall(r"\btorch(?:_npu)?\.npu\.((?:memory\.)?\w+)", path.read_text())
    }
    assert len(names) > 20
    for name in names - NOT_NAMES:
        owner, _, attribute = name.rpartition(".")
        assert hasattr(getattr(torch.npu, owner) if owner else torch.npu, attribute), name


def test_a_stream_waits_for_events_of_any_class():
    """As torch_npu does: vllm-ascend leaves a class of its own in torch.cuda.Event."""
    waited = []

    class Foreign:
        def wait(self, stream):
            waited.append(stream)

    stream = torch.npu.Stream()
    stream.wait_event(Foreign())
    assert waited == [stream]
    stream.wait_event(torch.npu.current_stream().record_event())

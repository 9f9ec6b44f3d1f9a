# SPDX-License-Identifier: Apache-2.0
"""Copies between host and devices, and pinned memory."""

from __future__ import annotations

import copy
import io
import json
import os
import pickle
import subprocess
import sys

import pytest
import torch
from torch.multiprocessing.reductions import reduce_tensor


def test_copies_convert_dtype_and_broadcast() -> None:
    target = torch.empty(2, 3, dtype=torch.int32, device="npu")
    target.copy_(torch.tensor([1.9, 2.9, 3.9]))
    assert target.tolist() == [[1, 2, 3]] * 2
    host = torch.empty(2, 3, dtype=torch.float64)
    assert host.copy_(target) is host
    assert host.tolist() == [[1.0, 2.0, 3.0]] * 2


def test_a_copy_is_not_an_alias() -> None:
    host = torch.zeros(2)
    device = host.to("npu")
    device.add_(1)
    assert host.tolist() == [0.0, 0.0]
    back = device.cpu()
    device.add_(1)
    assert back.tolist() == [1.0, 1.0]


def test_copies_between_devices() -> None:
    first = torch.arange(3, device="npu:0")
    second = first.to("npu:1")
    assert second.device.index == 1
    first.zero_()
    assert second.tolist() == [0, 1, 2]
    assert (second + 1).device.index == 1, "results stay on the operands' device"
    assert torch.npu.current_device() == 0


def test_current_device_decides_where_npu_is() -> None:
    with torch.npu.device(1):
        assert torch.empty(1, device="npu").device.index == 1
        assert torch.ones(1).npu().device.index == 1
    assert torch.empty(1, device="npu").device.index == 0


def test_strided_copies() -> None:
    device = torch.arange(12, device="npu").view(3, 4)
    assert device.t().cpu().tolist() == torch.arange(12).view(3, 4).t().tolist()
    host = torch.zeros(4, 3, dtype=torch.int64)
    host.t().copy_(device)
    assert host.t().tolist() == device.tolist()


def test_pinned_memory() -> None:
    plain = torch.arange(4.0)
    pinned = plain.pin_memory()
    assert not plain.is_pinned()
    assert pinned.is_pinned()
    assert pinned[2:].is_pinned(), "a view of pinned memory is pinned"
    assert torch.empty(3, pin_memory=True).is_pinned()
    assert pinned.device.type == "cpu"
    address = pinned.data_ptr()
    del pinned
    assert not torch.empty(4).is_pinned() or torch.empty(4).data_ptr() != address


def test_the_hosts_cache_can_be_emptied() -> None:
    """As vLLM 0.30.0 does when an engine ends."""
    pinned = torch.arange(6, pin_memory=True)
    copied = pinned.to("npu", non_blocking=True)
    torch.accelerator.empty_host_cache()
    assert copied.cpu().tolist() == list(range(6))
    assert pinned.is_pinned()


def test_non_blocking_copies() -> None:
    device = torch.arange(4.0).pin_memory().to("npu", non_blocking=True)
    host = device.to("cpu", non_blocking=True)
    assert host.is_pinned(), "PyTorch copies into pinned memory when asked not to wait"
    assert host.tolist() == [0.0, 1.0, 2.0, 3.0]


def test_numpy_of_device_memory_is_refused() -> None:
    with pytest.raises(TypeError, match="cpu"):
        torch.ones(1, device="npu").numpy()


# Saving, loading and pickling of tensors, parameters and generators of the device.


def saved(value: object) -> io.BytesIO:
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return file


def test_a_tensor_is_loaded_to_the_device_it_came_from() -> None:
    x = torch.arange(6, device="npu:1").view(2, 3)
    back = torch.load(saved(x))
    assert back.device == torch.device("npu:1")
    assert back.tolist() == [[0, 1, 2], [3, 4, 5]]


@pytest.mark.parametrize(
    ("source", "map_location", "expected"),
    [
        ("cpu", "npu", "npu:0"),
        ("cpu", "npu:1", "npu:1"),
        ("npu:1", "npu:0", "npu:0"),
        ("npu", "cpu", "cpu"),
    ],
)
def test_map_location(source: str, map_location: str, expected: str) -> None:
    x = torch.arange(3).to(source)
    back = torch.load(saved(x), map_location=map_location)
    assert back.device == torch.device(expected)
    assert back.tolist() == [0, 1, 2]


def test_shared_storage_stays_shared() -> None:
    x = torch.zeros(4, device="npu")
    first, second = torch.load(saved([x[:2], x]))
    first.fill_(1)
    assert second.tolist() == [1.0, 1.0, 0.0, 0.0]


def test_state_dict_of_a_module() -> None:
    layer = torch.nn.Linear(3, 2).npu()
    state = torch.load(saved(layer.state_dict()))
    assert state["weight"].device.type == "npu"
    twin = torch.nn.Linear(3, 2)
    twin.load_state_dict(state)
    assert torch.equal(twin.weight, layer.weight.cpu())


def test_pickle_and_deepcopy() -> None:
    x = torch.arange(3.0, device="npu").t()
    for twin in (pickle.loads(pickle.dumps(x)), copy.deepcopy(x), copy.copy(x)):
        assert twin.device == x.device
        assert twin.tolist() == x.tolist()
    assert copy.deepcopy(x).data_ptr() != x.data_ptr()


def test_storages_move() -> None:
    storage = torch.arange(4, dtype=torch.uint8).untyped_storage()
    on_device = storage.npu()
    assert on_device.device.type == "npu"
    assert on_device.is_npu
    assert on_device.cpu().tolist() == [0, 1, 2, 3]


# Strict mode refuses operands on different devices, with PyTorch's rules and words.

REFUSED = "Expected all tensors to be on the same device, but found at least two devices"


@pytest.mark.usefixtures("strict_devices")
class TestStrict:
    @pytest.mark.parametrize(
        "operation",
        [
            lambda npu, cpu: npu + cpu,
            lambda npu, cpu: cpu + npu,
            lambda npu, cpu: npu.add_(cpu),
            lambda npu, cpu: npu.view(1, 3) @ cpu.view(3, 1),
            lambda npu, cpu: torch.cat([npu, cpu]),
            lambda npu, cpu: torch.where(npu > 0, npu, cpu),
            lambda npu, cpu: torch.add(npu, npu, out=cpu),
            lambda npu, cpu: npu.index_select(0, cpu.long()),
            lambda npu, cpu: npu.gather(0, cpu.long()),
            lambda npu, cpu: npu.scatter_(0, npu.long(), cpu),
            lambda npu, cpu: torch.nn.functional.embedding(cpu.long(), npu.view(3, 1)),
        ],
    )
    def test_host_tensors_are_refused(self, operation) -> None:
        npu, cpu = torch.zeros(3, device="npu"), torch.zeros(3)
        with pytest.raises(RuntimeError, match=f"{REFUSED}, (npu:0 and cpu|cpu and npu:0)"):
            operation(npu, cpu)

    def test_two_devices_are_refused(self) -> None:
        with pytest.raises(RuntimeError, match=f"{REFUSED}, npu:0 and npu:1"):
            torch.zeros(2, device="npu:0") + torch.zeros(2, device="npu:1")

    def test_host_scalars_are_allowed(self) -> None:
        x = torch.ones(3, device="npu")
        assert (x * torch.tensor(2.0)).tolist() == [2.0] * 3
        assert torch.where(x > 0, torch.tensor(5.0), x).tolist() == [5.0] * 3

    def test_host_indices_are_allowed_in_indexing(self) -> None:
        x = torch.arange(3, device="npu")
        assert x[torch.tensor([2, 0])].tolist() == [2, 0]
        x[torch.tensor([1])] = 7
        assert x.tolist() == [0, 7, 2]
        x[torch.tensor([True, False, False])] = torch.tensor(9, device="npu")
        assert x.tolist() == [9, 7, 2]

    def test_host_values_are_refused_in_index_assignment(self) -> None:
        x = torch.arange(3, device="npu")
        with pytest.raises(RuntimeError, match=REFUSED):
            torch.index_put_(x, (torch.tensor([0, 1]),), torch.tensor([5, 6]))

    def test_copies_cross_devices(self) -> None:
        x = torch.zeros(3, device="npu")
        x.copy_(torch.ones(3))
        x[1:] = torch.tensor([4.0, 5.0])  # assignment to a slice is a copy
        assert x.tolist() == [1.0, 4.0, 5.0]

    def test_a_refused_call_changes_nothing(self) -> None:
        x = torch.zeros(3, device="npu")
        with pytest.raises(RuntimeError, match=REFUSED):
            x.add_(torch.ones(3))
        assert x.tolist() == [0.0] * 3


@pytest.mark.usefixtures("lenient_devices")
def test_without_strict_mode_host_tensors_are_taken() -> None:
    # Only where PyTorch itself does not refuse them, as it does in additions.
    x = torch.tensor([5.0, 6.0, 7.0], device="npu")
    result = torch.nn.functional.embedding(torch.tensor([2, 0]), x.view(3, 1))
    assert result.device.type == "npu"
    assert result.tolist() == [[7.0], [5.0]]
    assert torch.nonzero(x, out=torch.empty(0, dtype=torch.int64)).device.type == "cpu"
    assert torch.mm(x.view(1, 3), torch.ones(3, 1)).tolist() == [[18.0]]


# Tensors of the device that another process opens, by the handle that torch_npu hands out.

HOLDER = """
import pickle, sys, torch, torch_npu
from torch.multiprocessing.reductions import reduce_tensor
held = torch.arange(24, dtype=torch.bfloat16, device="npu").view(4, 6)[1:, ::2]
_, arguments = reduce_tensor(held)
print(pickle.dumps(arguments).hex(), flush=True)
sys.stdin.read()
"""


def opened(arguments: tuple[object, ...], device: int) -> torch.Tensor:
    from torch_npu.multiprocessing.reductions import rebuild_npu_tensor

    return rebuild_npu_tensor(*arguments[:6], device, *arguments[7:])


def test_another_process_opens_a_view_with_its_strides() -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert holder.stdout is not None
    arguments = pickle.loads(bytes.fromhex(holder.stdout.readline().decode().strip()))
    there = opened(arguments, 1)
    assert there.device == torch.device("npu:1")
    assert there.dtype == torch.bfloat16
    assert there.tolist() == [[6, 8, 10], [12, 14, 16], [18, 20, 22]]
    holder.communicate(b"")
    with pytest.raises(OSError, match="No such file"):
        opened(arguments, 0)


def test_a_buffer_that_was_handed_out_once_is_opened_as_it_is_then() -> None:
    buffer = torch.zeros(4, dtype=torch.float32, device="npu")
    _, arguments = reduce_tensor(buffer)
    assert arguments[6] == 0, "vllm-ascend puts the reader's device there"
    for value in (1.0, 2.0):
        buffer.fill_(value)
        assert opened(arguments, 0).tolist() == [value] * 4


def test_tensors_of_the_host_are_reduced_as_before() -> None:
    rebuild, arguments = reduce_tensor(torch.arange(3))
    assert rebuild(*arguments).tolist() == [0, 1, 2]


# What memory holds that nothing was written to, and what rows that operators leave undefined.

PROGRAM = """
import json
import torch, torch_npu
from emulated_npu.operators.moe_routing import RoutingRequest, init_routing

fresh = torch.empty(1024, device="npu").cpu()
counted = torch.empty(1024, dtype=torch.int32, device="npu").cpu()
graph = torch.npu.NPUGraph()
with torch.npu.graph(graph):
    captured = torch.empty(4, device="npu")
    captured[:2].fill_(7.0)
before = captured.cpu()
graph.replay()
after = captured.cpu()

def words(tensor):
    kinds = [("nan", tensor.isnan()), ("zero", tensor == 0), ("minus one", tensor == -1)]
    return next((name for name, found in kinds if bool(found.all())), "other")

# One of two choices is of this rank's experts.
rows, *_ = init_routing(
    "routing", torch.ones(1, 8), torch.tensor([[0, 3]], dtype=torch.int32), None, None,
    RoutingRequest(-1, 4, 0, 1, -1, [0, 2], 0),
)
print(json.dumps([words(fresh), words(counted), words(before), words(after[2:]), after[0].item(),
                  words(rows[0]), words(rows[1])]))
"""


@pytest.mark.parametrize(
    ("asked", "memory", "integers", "rows"),
    [
        ("zero", "zero", "zero", "zero"),
        ("nan", "nan", "minus one", "zero"),
        ("undefined", "nan", "minus one", "nan"),
    ],
)
def test_memory_holds_what_is_asked_for(asked, memory, integers, rows):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, "EMULATED_NPU_UNWRITTEN": asked},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found == [memory, integers, memory, memory, 7.0, "other", rows]

# SPDX-License-Identifier: Apache-2.0
"""Tensors of the device that another process opens, by the handle that torch_npu hands out."""

from __future__ import annotations

import pickle
import subprocess
import sys

import pytest
import torch
from torch.multiprocessing.reductions import reduce_tensor

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

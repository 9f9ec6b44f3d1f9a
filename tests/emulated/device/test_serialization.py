# SPDX-License-Identifier: Apache-2.0
"""Saving, loading and pickling of tensors, parameters and generators of the device."""

from __future__ import annotations

import copy
import io
import pickle

import pytest
import torch


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

# SPDX-License-Identifier: Apache-2.0
"""What a draft keeps while its worker sleeps, with tensors of the host."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from mkv_ascend.adapters.common.sleeping import SleepingDraft

TAKEN = float("nan")


class Head(nn.Module):
    """A draft with a weight of the target, a buffer, a matrix made of weights, and a cache."""

    def __init__(self, embeddings: nn.Parameter) -> None:
        super().__init__()
        self.embeddings = embeddings
        self.weight = nn.Parameter(torch.full((2, 3), 1.0))
        self.register_buffer("sines", torch.full((4,), 2.0))
        self.impl = SimpleNamespace(made_of_weights=torch.full((5,), 3.0), pair=(torch.ones(2),))
        self.page = torch.full((6, 8), 4.0)  # of which the cache is a part
        self.kv_cache = [(self.page[:, :3], self.page[:, 3:7])]

    def own(self) -> list[torch.Tensor]:
        return [self.weight.data, self.sines, self.impl.made_of_weights, self.impl.pair[0]]


@pytest.fixture
def head() -> Head:
    return Head(nn.Parameter(torch.full((7,), 5.0)))


def sleep(head: Head, level: int) -> SleepingDraft:
    """Sleep that takes everything, as the device does."""
    target = nn.Module()
    target.embeddings = head.embeddings
    sleeping = SleepingDraft()
    sleeping.keep(level, head, target, head.kv_cache)
    for tensor in [*head.own(), head.embeddings.data, head.page]:
        tensor.fill_(TAKEN)
    return sleeping


@pytest.mark.parametrize("level", [1, 2])
def test_weights_sleep_until_they_are_woken_up(head: Head, level: int) -> None:
    sleeping = SleepingDraft()
    assert not sleeping.is_asleep
    runner = SimpleNamespace(model=nn.Module(), kv_caches=head.kv_cache)
    sleeping.fall_asleep(level, runner, SimpleNamespace(model=head), None)
    sleeping.wake_up(["kv_cache"], head.kv_cache)
    assert sleeping.is_asleep
    sleeping.wake_up(None, head.kv_cache)
    assert not sleeping.is_asleep


def test_weights_are_as_they_were_behind_sleep_that_keeps_none(head: Head) -> None:
    before = [tensor.clone() for tensor in head.own()]
    sleeping = sleep(head, level=2)
    sleeping.wake_up(["kv_cache"], head.kv_cache)
    assert all(tensor.isnan().all() for tensor in head.own())
    sleeping.wake_up(["weights"], head.kv_cache)
    for tensor, expected in zip(head.own(), before, strict=True):
        torch.testing.assert_close(tensor, expected)
    assert head.embeddings.isnan().all()  # the target's: whoever has it loads it


def test_weights_are_given_back_once(head: Head) -> None:
    sleeping = sleep(head, level=2)
    sleeping.wake_up(None, head.kv_cache)
    head.weight.data.fill_(9.0)
    sleeping.wake_up(None, head.kv_cache)
    assert (head.weight == 9.0).all()


def test_others_keep_the_weights_of_level_1(head: Head) -> None:
    sleep(head, level=1).wake_up(None, head.kv_cache)
    assert all(tensor.isnan().all() for tensor in head.own())


def test_sleep_forgets_what_an_earlier_one_kept(head: Head) -> None:
    sleeping = sleep(head, level=2)
    sleeping.keep(1, head, nn.Module(), head.kv_cache)
    sleeping.wake_up(None, head.kv_cache)
    assert head.weight.isnan().all()


@pytest.mark.parametrize(("tags", "zeroed"), [(None, True), (["kv_cache"], True), ([], False)])
def test_caches_wake_up_as_zeros_with_what_lies_between_them(
    head: Head, tags: list[str] | None, zeroed: bool
) -> None:
    sleep(head, level=1).wake_up(tags, head.kv_cache)
    assert (head.page == 0).all() == zeroed


def test_graphs_that_sleep_are_dropped(head: Head) -> None:
    dropped: list[str] = []
    assembly: Any = SimpleNamespace(drop_captured=lambda: dropped.append("all"))
    runner = SimpleNamespace(model=nn.Module(), kv_caches=head.kv_cache)
    sleeping = SleepingDraft()
    sleeping.fall_asleep(2, runner, SimpleNamespace(model=head), None)
    assert not dropped
    sleeping.fall_asleep(2, runner, SimpleNamespace(model=head), assembly)
    assert dropped == ["all"]
    head.weight.data.fill_(TAKEN)
    sleeping.wake_up(None, head.kv_cache)
    assert (head.weight == 1.0).all()


def test_a_worker_without_a_draft(head: Head) -> None:
    sleeping = SleepingDraft()
    runner = SimpleNamespace(model=head, kv_caches=head.kv_cache)
    sleeping.fall_asleep(2, runner, None, None)
    sleeping.wake_up(None, head.kv_cache)
    assert (head.page == 0).all()

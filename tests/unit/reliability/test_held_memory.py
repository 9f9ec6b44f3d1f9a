# SPDX-License-Identifier: Apache-2.0
"""A line that keeps what it makes is told, and one that keeps nothing, or no more, is not."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from reliability.held_memory import Growth, Holder

BYTES = 10_000


@pytest.fixture(autouse=True)
def _traces_no_other_test() -> Iterator[None]:
    yield
    tracemalloc.stop()


def ask(method: str) -> list[Any]:
    """As a server asks its only worker."""
    return [getattr(Holder(), method)()]


def new() -> bytearray:
    return bytearray(BYTES)


def other() -> bytearray:
    return bytearray(BYTES)


def place_of(maker: Callable[[], bytearray]) -> str:
    """The line of a function with one, as it is told."""
    return f"{__file__}:{maker.__code__.co_firstlineno + 1}"


def grown(makers: Sequence[Callable[[], bytearray] | None]) -> list[str]:
    """What is told where before each round one of these made something that is kept."""
    growth, kept = Growth(), []
    for number, maker in enumerate(makers):
        if maker is not None:
            kept.append(maker())
        growth.note(500 * (number + 1), ask)
        new()  # kept by nobody
    return growth.told()


def test_what_grows_in_each_round_is_told_with_its_line() -> None:
    told = grown([None, other, new, new, new])
    assert "for each 1,000 of the last 1500 requests" in told[0]
    (line,) = [text for text in told if place_of(new) in text]
    more, said = line.split(" bytes, in ")
    assert int(more.replace(",", "")) == pytest.approx(2 * BYTES, rel=0.05)
    assert said.startswith("3 of 3 rounds")
    assert not [text for text in told if place_of(other) in text]


def test_what_grew_once_is_told_as_such() -> None:
    (line,) = [text for text in grown([None, None, None, new, None]) if place_of(new) in text]
    assert "1 of 3 rounds" in line

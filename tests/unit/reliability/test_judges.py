# SPDX-License-Identifier: Apache-2.0
"""What a soak judges by: draws, levels of memory, and lines that hold it."""

import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch

from reliability import levels
from reliability.draws import Draws
from reliability.held_memory import Growth, Holder

GENERATOR = torch.Generator().manual_seed(3)
ROWS = torch.randn(4000, 4, generator=GENERATOR, dtype=torch.float64)


def drawn(temperature: float = 1.0, forced: float = 0.0) -> Draws:
    """Draws at a temperature; a share of them is the likeliest whatever the chance says."""
    found = Draws()
    for row in ROWS:
        chosen = int(torch.multinomial((row / temperature).softmax(-1), 1, generator=GENERATOR))
        if float(torch.rand(1, generator=GENERATOR)) < forced:
            chosen = int(row.argmax())
        found.add(row.log_softmax(-1), chosen)
    return found


def test_right_draws_pass() -> None:
    found = drawn()
    assert found.count == len(ROWS)
    assert 0.0 < abs(found.deviation) < 4.0
    assert found.problems() == []


@pytest.mark.parametrize(
    ("wrong", "kind"),
    [
        ({"temperature": 0.7}, "likely"),
        ({"temperature": 1.5}, "unlikely"),
        ({"forced": 0.2}, "likely"),
    ],
)
def test_wrong_draws_are_noticed(wrong: dict[str, float], kind: str) -> None:
    (problem,) = drawn(**wrong).problems()
    assert f"too {kind}" in problem


def test_a_few_draws_say_nothing_and_sums_are_those_of_all() -> None:
    few = Draws(count=199, excess=100.0, variance=1.0)
    assert few.problems() == []
    assert Draws().deviation == 0.0
    few += Draws(count=1, excess=-40.0, variance=3.0)
    assert (few.count, few.deviation) == (200, 30.0)
    assert len(few.problems()) == 1


HOUR = 3600.0


def looks(*megabytes: float) -> list[dict[str, float]]:
    return [{"engine": value} for value in megabytes]


def test_growth_is_told_in_an_hour_behind_the_warm_up() -> None:
    """Caches of 50 MB fill in the first look of five; then it is 2 MB each half hour."""
    times = [0.5 * HOUR * number for number in range(1, 6)]
    found = levels.growth(times, looks(50, 100, 102, 104, 106))
    assert found == {"engine": (pytest.approx(4.0), pytest.approx(1.5 * HOUR))}
    assert levels.told(found) == ["engine: +4.00 MB an hour, from 90 minutes"]
    (problem,) = levels.problems(found)
    assert problem == "engine grew by 4.0 MB an hour for 90 minutes; at most 1.0"


def test_what_is_level_or_too_short_is_no_problem() -> None:
    assert levels.problems({"engine": (1.0, HOUR), "server": (-2.0, HOUR)}) == []
    assert levels.problems({"engine": (9.0, levels.LEAST_SECONDS - 1)}) == []
    assert levels.problems({"engine": (1.01, levels.LEAST_SECONDS)})


def test_a_process_of_a_server_before_this_one_has_no_say() -> None:
    """A run that goes on has another server; looks before its start have no time."""
    times = [1.0, 2.0, 3.0, 4.0, 5.0]
    before = [{"engine 1": 900.0}, {"engine 1": 901.0}]
    after = [{"engine 2": value} for value in (500.0, 510.0, 510.0, 510.0)]
    found = levels.growth(times, [{"engine 2": 499.0}, *before[1:], *after])
    assert found == {"engine 2": (pytest.approx(0.0), pytest.approx(2.0))}
    assert levels.growth([], [{"engine 2": 499.0}]) == {}


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

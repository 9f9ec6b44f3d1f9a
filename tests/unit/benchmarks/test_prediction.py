# SPDX-License-Identifier: Apache-2.0
"""Published figures: the split, the fit, and that the package and docs/prediction.md tell it."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks import following_loads, prediction
from benchmarks.following_loads import HEAD, LAUNCHES, QWEN3_06B, QWEN3_8B, Model, Pair
from mkv_ascend.advice.work import read_calibration

PAGE = Path(__file__).resolve().parents[3] / "docs" / "prediction.md"


def test_every_second_row_calibrates_and_the_constants_are_those_of_the_fit() -> None:
    split = [calibrates for _, calibrates in prediction.rows()]
    assert split == [place % 2 == 0 for place in range(len(split))]
    fitted = prediction.fit()
    shipped = read_calibration().host_seconds
    assert fitted == pytest.approx(dict(shipped), rel=0.01)


def test_a_row_that_was_looked_at_is_in_sample_and_counts_by_its_sign_alone() -> None:
    found = prediction.figures(read_calibration())
    known = [figure for figure in found if figure.half == "in-sample"]
    assert [(figure.name, figure.draft) for figure in known] == [
        ("Qwen3-14B, GSM8K, a loss", False),
        ("Qwen3-14B, GSM8K, a loss", True),
    ]
    assert not {id(figure) for figure in known} & {id(x) for x in prediction.judged(found)}
    (plain, drafted) = known
    as_a_gain = replace(drafted, predicted=plain.predicted / 2)
    changed = [as_a_gain if figure is drafted else figure for figure in found]
    told, before = prediction.summary(changed), prediction.summary(found)
    assert told["wrong_signs"] == [drafted.name]
    assert (told["mean"], told["speed_ups"]) == (before["mean"], before["speed_ups"])


def test_band_and_page_say_what_comes_out() -> None:
    found = prediction.figures(read_calibration())
    summary = prediction.summary(found)
    assert read_calibration().band == pytest.approx(summary["speed_ups"]["worst"], abs=0.005)
    page = PAGE.read_text(encoding="utf-8")
    assert "\n".join(prediction.page(found)) in page


def test_what_nobody_measured_counts_by_its_sign(monkeypatch: pytest.MonkeyPatch) -> None:
    """A loss here and there; were it a gain there, goals would be missed."""
    calibration = read_calibration()
    ((name, ours, theirs),) = prediction.predicted_by_others(calibration)
    assert (ours < 1, theirs) == (True, 0.93)
    found = prediction.figures(calibration)
    assert prediction.summary(found)["goals_met"]
    (row,) = prediction.PUBLISHED["signs"]
    monkeypatch.setitem(row, "speed_up", 1.1)
    told = prediction.summary(found)
    assert (told["wrong_signs"], told["goals_met"]) == ([name], False)
    assert (
        f"{name}: a speed-up of 1.10 is predicted elsewhere, and of {ours:.2f} here"
        in "\n".join(prediction.page(found))
    )


BOUND = 0.03


def test_a_step_is_the_sum_of_its_passes() -> None:
    """By hand: weights are read once per pass, each pass and each update is launched."""
    target, draft = Model(1e9, 10, 0), Model(1e8, 4, 0)
    pair = Pair(target, draft, launches=5, updates=2, acceptance=0.5)
    read = 1 / (1.6 * 2**40 * 0.6)
    expected = 2e9 * read + 3 * 2e8 * read + (10 + 3 * 4 + 5 + 3 * 2) * 5e-6
    assert pair.seconds(1, verified=3, drafted=3) == pytest.approx(expected)
    assert pair.tokens(3) == 1 + 0.5 + 0.25 + 0.125
    # Many tokens are computed for longer than weights are read; the first pass has all rows.
    computed = (2e9 + 2e8) * 512 * 4 / (353.9e12 * 0.7)
    launched = (10 + 3 * 4 + 5 + 3 * 2) * 5e-6
    later = 2 * max(2e8 * read, 2e8 * 512 / (353.9e12 * 0.7))
    assert pair.seconds(512, 3, 3) == pytest.approx(computed + later + launched)


def test_a_fixed_number_costs_what_its_steps_cost() -> None:
    pair = Pair(QWEN3_8B, QWEN3_06B, LAUNCHES, 28, 0.7)
    step = pair.seconds(4, 2, 2) / (4 * pair.tokens(2))
    assert following_loads.cost(pair, ((4, 500),), 2) == pytest.approx(step)


@settings(max_examples=150, deadline=None)
@given(
    st.floats(0.1, 0.95),
    st.sampled_from([QWEN3_06B, HEAD]),
    st.lists(st.tuples(st.sampled_from([1, 2, 8, 32, 64, 128, 256]), st.integers(100, 400)),
             min_size=1, max_size=7),
)  # fmt: skip
def test_the_load_costs_no_more_than_any_fixed_number(
    acceptance: float, draft: Model, phases: list[tuple[int, int]]
) -> None:
    """For phases of a hundred tokens of a request and more, each step before a change included."""
    pair = Pair(QWEN3_8B, draft, LAUNCHES, draft.operators // 12, acceptance)
    trace = [(requests, requests * tokens) for requests, tokens in phases]
    assert following_loads.excess(pair, trace) <= BOUND

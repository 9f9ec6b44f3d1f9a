# SPDX-License-Identifier: Apache-2.0
"""Published figures: the split, the fit, and that the package and docs/prediction.md tell it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import prediction
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

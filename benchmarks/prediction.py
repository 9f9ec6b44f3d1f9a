# SPDX-License-Identifier: Apache-2.0
"""Published figures beside what ``mkv-ascend advise`` predicts for them.

``python -m benchmarks.prediction`` prints each figure, ``--json`` as JSON. ``--fit`` fits the
constants of host time to the rows that calibrate, and writes them to the package together with the
worst error of the rows that do not, and docs/prediction.md. Which row is which follows the rule in
``figures.json``. ``--build`` has vLLM build the models of all rows, and writes ``works.json`` and
the page: nothing else here needs vLLM.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from mkv_ascend.advice.prediction import Drafting, Serving, host_counts, predict
from mkv_ascend.advice.work import (
    FOLDER,
    HOST_TERMS,
    Calibration,
    ModelWork,
    read_calibration,
    read_device,
)

__all__ = ["Figure", "figures", "fit", "judged", "rows", "summary"]

PAGE = Path(__file__).resolve().parent.parent / "docs" / "prediction.md"
MARKS = "<!-- generated: begin -->", "<!-- generated: end -->"
PUBLISHED = json.loads((Path(__file__).parent / "figures.json").read_text(encoding="utf-8"))
WORKS = Path(__file__).parent / "works.json"
NO_HOST = Calibration(dict.fromkeys(HOST_TERMS, 0.0), 0.0, "none")
SWEEPS = 2_000
GOALS = {"mean": 0.2, "worst": 0.4}


@dataclass(frozen=True)
class Figure:
    """A published time per token.

    ``draft``: whether with a draft; ``calibrates``: by the rule; ``in_sample``: it does not
    calibrate, and its error was looked at when an assumption was changed.
    """

    name: str
    requests: int
    draft: bool
    calibrates: bool
    predicted: float
    measured: float
    in_sample: bool = False

    @property
    def half(self) -> str:
        """As the page names it."""
        if self.calibrates:
            return "calibrates"
        return "in-sample" if self.in_sample else "unused"

    @property
    def error(self) -> float:
        """Relative, without its sign."""
        return abs(self.predicted / self.measured - 1)


def rows() -> list[tuple[Mapping[str, Any], bool]]:
    """Each published row, and whether it calibrates."""
    return [(row, place % 2 == 0) for place, row in enumerate(PUBLISHED["rows"])]


@lru_cache
def _work(name: str, ranks: int) -> ModelWork:
    works = json.loads(WORKS.read_text(encoding="utf-8"))
    return TypeAdapter(ModelWork).validate_python(works[f"{name} x {ranks}"])


def built(name: str, ranks: int) -> dict[str, Any]:
    """One rank's share of a model that vLLM builds of its published numbers."""
    from mkv_ascend.commands.host_process import THIS, ask

    values = {name: value for name, value in PUBLISHED["models"][name].items() if name != "source"}
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(values), encoding="utf-8")
        words = [folder, "--tensor-parallel-size", str(ranks), "--max-model-len", "4096"]
        device = {**THIS, "count_is_known": True, "memory_bytes": 1 << 50, "generation": "A2"}
        question = {"words": words, "device": device, "plan": False, "works": True}
        answer = ask(question, {}, "advise")
    if answer["answer"] != "served":
        raise RuntimeError(f"{name}: {answer}")
    found: dict[str, Any] = answer["works"]["target"]
    return found


def models() -> list[tuple[str, int]]:
    """Targets and drafts of all rows, with their ranks."""
    known = [*PUBLISHED["rows"], *PUBLISHED["signs"]]
    return sorted(
        {(row[role], row["ranks"]) for row in known for role in ("target", "draft") if role in row}
    )


def _write_works() -> None:
    works = {f"{name} x {ranks}": built(name, ranks) for name, ranks in models()}
    WORKS.write_text(json.dumps(works, indent=1) + "\n", encoding="utf-8")


def _serving(row: Mapping[str, Any], calibration: Calibration) -> Serving:
    return Serving(
        _work(row["target"], row["ranks"]),
        read_device(row["chip"]),
        calibration,
        row["context"],
        row["graphs"] == "full",
        row["ahead"],
    )


def _drafting(row: Mapping[str, Any]) -> Drafting:
    ahead = row.get("drafted_ahead", row["ahead"])
    if "draft" not in row:
        return Drafting(ahead=ahead)
    return Drafting(_work(row["draft"], row["ranks"]), first_tokens=2, ahead=ahead)


def _steps(row: Mapping[str, Any]) -> Iterator[tuple[int, float, float]]:
    """Draft tokens, tokens of a step, and measured milliseconds of a token."""
    yield 0, 1.0, row["plain_ms"]
    if "drafted_ms" in row:
        # vLLM's rate is of accepted to drafted tokens.
        yield row["tokens"], 1 + row["tokens"] * row["rate"], row["drafted_ms"]


def figures(calibration: Calibration) -> list[Figure]:
    """Every figure, predicted with these constants."""
    found = []
    for row, calibrates in rows():
        serving, drafting = _serving(row, calibration), _drafting(row)
        for tokens, length, measured in _steps(row):
            step = predict(serving, drafting, row["requests"], tokens, length)
            name = f"{row['target']}, {row['name']}"
            predicted = 1e3 * step.time_per_token
            known = "in_sample" in row
            figure = (name, row["requests"], tokens > 0, calibrates, predicted, measured, known)
            found.append(Figure(*figure))
    return found


def fit() -> dict[str, float]:
    """Host seconds, none below 0, with the least squares of relative errors of calibrating rows."""
    weighted: list[tuple[dict[str, float], float]] = []
    for row, calibrates in rows():
        if not calibrates:
            continue
        serving, drafting = _serving(row, NO_HOST), _drafting(row)
        for tokens, length, measured in _steps(row):
            step = predict(serving, drafting, row["requests"], tokens, length)
            counts = host_counts(serving, drafting, row["requests"], tokens)
            scale = 1e3 / length / measured
            known = 1e3 * step.time_per_token / measured
            weighted.append(({name: n * scale for name, n in counts.items()}, 1 - known))
    return _least_squares(weighted)


def _least_squares(weighted: Sequence[tuple[Mapping[str, float], float]]) -> dict[str, float]:
    """One term after another, until nothing moves."""
    found = dict.fromkeys(HOST_TERMS, 0.0)
    for _ in range(SWEEPS):
        for name in HOST_TERMS:
            above = below = 0.0
            for counts, wanted in weighted:
                rest = wanted - sum(found[x] * n for x, n in counts.items() if x != name)
                above += counts[name] * rest
                below += counts[name] ** 2
            found[name] = max(0.0, above / below) if below else 0.0
    return found


def judged(found: Sequence[Figure]) -> list[Figure]:
    """The figures that had no say: they do not calibrate, and are not in-sample."""
    return [figure for figure in found if figure.half == "unused"]


def _signs(found: Sequence[Figure]) -> list[tuple[Figure, float, float]]:
    """Each figure with a draft, behind its plain one: predicted and measured speed-up."""
    return [
        (drafted, plain.predicted / drafted.predicted, plain.measured / drafted.measured)
        for plain, drafted in pairwise(found)
        if drafted.draft
    ]


def predicted_by_others(calibration: Calibration) -> list[tuple[str, float, float]]:
    """Of pairs that nobody measured on an NPU: name, speed-up here, and speed-up there.

    Only whether it is a gain is compared.
    """
    found = []
    for row in PUBLISHED["signs"]:
        serving, drafting = _serving(row, calibration), _drafting(row)
        step = predict(serving, drafting, row["requests"], row["tokens"], row["length"])
        found.append((row["name"], step.speed_up, row["speed_up"]))
    return found


def summary(found: Sequence[Figure]) -> dict[str, Any]:
    """Errors of the figures that had no say, beside the goals.

    Signs are those of every figure that does not calibrate.
    """
    unused = judged(found)
    errors = [figure.error for figure in unused]
    signs = _signs(unused)
    gains = [(x.name, ours, theirs) for x, ours, theirs in _signs(found) if not x.calibrates]
    gains += predicted_by_others(read_calibration())
    wrong = [name for name, ours, theirs in gains if (ours > 1) != (theirs > 1)]
    of_gains = [abs(ours / theirs - 1) for _, ours, theirs in signs]
    mean, worst = sum(errors) / len(errors), max(errors)
    return {
        "figures": len(unused),
        "mean": mean,
        "worst": worst,
        "speed_ups": {
            "figures": len(signs),
            "mean": sum(of_gains) / len(signs),
            "worst": max(of_gains),
        },
        "wrong_signs": wrong,
        "goals": GOALS,
        "goals_met": mean <= GOALS["mean"] and worst <= GOALS["worst"] and not wrong,
    }


def _write_fit() -> None:
    seconds = {name: float(f"{value:.3g}") for name, value in fit().items()}
    fitted = Calibration(seconds, 0.0, "")
    worst = summary(figures(fitted))["speed_ups"]["worst"]
    plain = {
        "host_seconds": seconds,
        "band": round(worst, 2),
        "source": "fitted to every second row of benchmarks/figures.json; the band is the worst "
        "error of a speed-up in the others",
    }
    (FOLDER / "calibrated.json").write_text(json.dumps(plain, indent=2) + "\n", encoding="utf-8")


def _write_page() -> None:
    text = PAGE.read_text(encoding="utf-8")
    before, _, rest = text.partition(MARKS[0])
    after = rest.partition(MARKS[1])[2]
    lines = "\n".join(page(figures(read_calibration())))
    PAGE.write_text(f"{before}{MARKS[0]}\n{lines}\n{MARKS[1]}{after}", encoding="utf-8")


def table(found: Sequence[Figure]) -> list[str]:
    """The rows of the table in docs/prediction.md."""
    lines = [
        "| figure | requests | draft | half | predicted ms | measured ms | error |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for x in found:
        draft = "yes" if x.draft else "no"
        lines.append(
            f"| {x.name} | {x.requests} | {draft} | {x.half} | {x.predicted:.1f} "
            f"| {x.measured:.1f} | {x.error:.0%} |"
        )
    return lines


def page(found: Sequence[Figure]) -> list[str]:
    """The generated part of docs/prediction.md: the outcome, then every figure."""
    told, gains = summary(found), summary(found)["speed_ups"]
    wrong = ", ".join(told["wrong_signs"]) or "none"
    return [
        f"- Times per token that are unused: {told['figures']}; mean error "
        f"{told['mean']:.0%}, worst {told['worst']:.0%}.",
        f"- Speed-ups that are unused: {gains['figures']}; mean error {gains['mean']:.0%}, "
        f"worst {gains['worst']:.0%}.",
        *(
            f"- In-sample, {x.name}: a speed-up of {theirs:.2f} was measured, and {ours:.2f} is "
            "predicted."
            for x, ours, theirs in _signs(found)
            if x.half == "in-sample"
        ),
        f"- Gain taken for a loss, or loss for a gain, with those in-sample: "
        f"{len(told['wrong_signs'])} ({wrong}).",
        *(
            f"- Not measured, {name}: a speed-up of {theirs:.2f} is predicted elsewhere, and of "
            f"{ours:.2f} here."
            for name, ours, theirs in predicted_by_others(read_calibration())
        ),
        f"- All goals met: {'yes' if told['goals_met'] else 'no'}.",
        "",
        *table(found),
        "",
        "Not predicted, and why:",
        "",
        *(f"- {name}. {why}" for name, why in PUBLISHED["not_predicted"]),
    ]


def main() -> None:
    """Print the figures, after a fit where it is asked for."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--fit", action="store_true", help="fit the constants first")
    parser.add_argument("--build", action="store_true", help="have vLLM build the models first")
    arguments = parser.parse_args()
    if arguments.build:
        _write_works()
    if arguments.fit:
        _write_fit()
    if arguments.build or arguments.fit:
        _write_page()
    found = figures(read_calibration())
    if arguments.json:
        plain = [{**vars(x), "half": x.half, "error": round(x.error, 4)} for x in found]
        print(json.dumps({"summary": summary(found), "figures": plain}, indent=2))
        return
    print("\n".join(table(found)))
    print(json.dumps(summary(found), indent=2))


if __name__ == "__main__":
    main()

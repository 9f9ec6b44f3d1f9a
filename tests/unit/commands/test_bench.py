# SPDX-License-Identifier: Apache-2.0
"""``mkv-ascend bench``: which servers it starts, what it tells of them, and bad input."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import pytest

from mkv_ascend import cli
from mkv_ascend.commands import bench, bench_report, bench_runs, demo_server
from mkv_ascend.commands.bench_runs import client_command, row_of, runs

RESULT = {
    "completed": 4,
    "failed": 0,
    "total_output_tokens": 96,
    "mean_ttft_ms": 20.0,
    "mean_tpot_ms": 5.25,
    "p99_tpot_ms": 9.0,
    "output_throughput": 100.0,
}
ACCEPTED = {
    "spec_decode_acceptance_length": 2.25,
    "spec_decode_per_position_acceptance_rates": [0.75, 0.5],
}


def asked(*options: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    bench.add_arguments(parser)
    return parser.parse_args(["model", *options])


def test_a_server_for_each_draft_k_and_backend() -> None:
    found = runs(
        asked(
            *("--draft", "eagle3=head", "--method", "suffix", "--tokens", "2,4"),
            *("--draft-backend", "auto", "--draft-backend", "fia", "--serve", "--dtype 'x y'"),
        )
    )
    alone, *others = found
    assert (alone.name, alone.tokens) == ("no draft", 0)
    assert alone.options == ("model", "--dtype", "x y")
    assert len(others) == 2 * 2 * 2
    assert {run.options[:3] for run in others} == {alone.options}
    assert [run.tokens for run in others] == [2, 2, 4, 4] * 2
    first, second = others[:2]
    assert first.options[3] == "--speculative-config"
    assert json.loads(first.options[4]) == {
        "method": "eagle3",
        "num_speculative_tokens": 2,
        "model": "head",
    }
    assert "--additional-config" not in first.options
    assert json.loads(second.options[6]) == {"mkv_ascend": {"attention": {"draft": "fia"}}}
    assert second.name == "eagle3 head, K = 2, draft: fia"
    assert "model" not in json.loads(others[-1].options[4])


def test_the_client_asks_each_server_the_same(tmp_path: Path) -> None:
    result = tmp_path / "r.json"
    random = client_command(asked("--method", "mtp", "--input", "7"), "http://a", result)
    assert random[random.index("--random-input-len") + 1] == "7"
    assert random[random.index("--seed") + 1] == "0"
    own = client_command(asked("--method", "mtp", "--prompts", "p.jsonl"), "http://a", result)
    assert own[own.index("--dataset-path") + 1] == "p.jsonl"
    assert "--random-input-len" not in own


def test_figures_of_a_run() -> None:
    told = {"mkv_ascend_draft_passes_total": 30.0, "vllm:other": 1.0}
    row = row_of({**RESULT, **ACCEPTED}, told)
    assert row["times"]["tpot_ms"] == 5.25
    assert row["counts"] == {"draft_passes": 30}
    assert row["tokens_per_step"] == 2.25
    assert row["accepted_by_position"] == [0.75, 0.5]
    assert "tokens_per_step" not in row_of(RESULT, told)


def answer(**changes: Any) -> dict[str, Any]:
    row = {"name": "mtp, K = 2 <i>", "tokens": 2, **row_of({**RESULT, **ACCEPTED}, {})}
    failed = {"name": "dflash", "tokens": 2, "failed": "mkv_ascend: no [b]\nmore"}
    plain = {"name": "no draft", "tokens": 0, **row_of(RESULT, {})}
    return {
        "target": "model",
        "emulated": False,
        "requests": 4,
        "concurrency": 2,
        "runs": [plain, row, failed],
        **changes,
    }


def test_the_page_is_well_formed_and_drawn_to_scale() -> None:
    page = bench_report.html(answer())
    root = ElementTree.fromstring(page.removeprefix("<!DOCTYPE html>"))
    name = "{http://www.w3.org/1999/xhtml}"
    assert "mtp, K = 2 <i>" in [cell.text for cell in root.iter(f"{name}td")]
    widths = [float(bar.attrib["width"]) for bar in root.iter(f"{name}rect")]
    # Tokens of a step of two runs, their times, and two positions.
    assert widths[0] / widths[1] == pytest.approx(1 / 2.25, abs=0.001)
    assert widths[2] == widths[3] == widths[1]
    assert widths[4] / widths[5] == pytest.approx(0.75 / 0.5, abs=0.001)


def test_no_page_tells_times_of_the_emulated_npu() -> None:
    runs_of_it = [{**one} for one in answer()["runs"]]
    for one in runs_of_it:
        one.pop("times", None)
    page = bench_report.html(answer(emulated=True, runs=runs_of_it))
    assert "Milliseconds per token" not in page
    assert "5.25" not in page
    assert bench_report.EMULATED in page
    assert bench_report.rows(answer(runs=runs_of_it))[1][2:5] == ("-", "-", "-")


def test_bars_and_rows_in_a_terminal() -> None:
    assert bench_report.bar(1.0) == "█" * bench_report.BAR_CELLS
    assert bench_report.bar(0.5 / 8 / bench_report.BAR_CELLS * 2) == "▏"
    lines = bench_report.plot_lines(answer())
    assert lines[1].endswith(" 75.0%")
    assert bench_report.rows(answer())[2][:2] == ("dflash", "mkv_ascend: no [b]")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("/nowhere", "--method", "mtp"), "no file /nowhere/config.json"),
        (("MODEL",), "give --draft DIR, or --method"),
        (("MODEL", "--draft", "d", "--prompts", "/nowhere"), "--prompts: no file /nowhere"),
        (("MODEL", "--method", "mtp", "--html", "/nowhere/p.html"), "--html: the folder of"),
        (
            ("MODEL", "--method", "mtp", "--serve=--speculative-config {}"),
            "--serve has --speculative-config, and so do --draft",
        ),
        (
            (
                "MODEL",
                "--method",
                "mtp",
                "--draft-backend",
                "x",
                "--serve=--additional-config={}",
            ),
            "--serve has --additional-config, and so do --target-backend",
        ),
    ],
)
def test_bad_input_is_one_line(
    options: tuple[str, ...],
    words: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "config.json").write_text("{}")
    given = [str(tmp_path) if word == "MODEL" else word for word in options]
    assert cli.main(["bench", *given]) == bench.EXIT_REFUSED
    errors = capsys.readouterr().err
    assert words in errors
    assert len(errors.splitlines()) == 1


def test_a_client_that_does_not_end_is_a_row(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A server that starts at once, and a client that takes longer than it may."""
    server = SimpleNamespace(address="http://a", metrics=dict)
    monkeypatch.setattr(demo_server, "started", lambda *_: contextlib.nullcontext(server))
    monkeypatch.setattr(demo_server, "wait_until_healthy", lambda _: None)
    monkeypatch.setattr(bench_runs, "CLIENT_SECONDS", 0.2)
    sleeps = [sys.executable, "-c", "import time; time.sleep(60)"]
    monkeypatch.setattr(bench_runs, "client_command", lambda *_: sleeps)
    options = asked("--method", "suffix")
    row = bench_runs.measure(runs(options)[0], options, None, tmp_path / "1.log")
    assert "timed out" in row["failed"]
    assert "times" not in row

# SPDX-License-Identifier: Apache-2.0
"""``mkv-ascend bench`` with real servers and vLLM's own client."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

from mkv_ascend.commands.bench_report import EMULATED
from tests.support.tiny_models import model_directory

SERVE = "--max-model-len 512 --enforce-eager --gpu-memory-utilization 0.3"
REQUESTS, OUTPUT = 8, 24


def test_a_pair_with_and_without_its_draft(tmp_path: Path) -> None:
    target = model_directory("llama_target")
    page = tmp_path / "page.html"
    command = [sys.executable, "-m", "mkv_ascend", "bench", str(target), "--draft", str(target)]
    command += ["--tokens", "2", "--requests", str(REQUESTS), "--concurrency", "4"]
    command += ["--input", "40", "--output", str(OUTPUT), "--html", str(page), "--json"]
    done = subprocess.run(
        [*command, f"--serve={SERVE}"], cwd=tmp_path, capture_output=True, text=True, timeout=900
    )
    assert done.returncode == 0, done.stderr
    alone, drafted = json.loads(done.stdout)["runs"]
    for row in (alone, drafted):
        assert (row["completed"], row["output_tokens"]) == (REQUESTS, REQUESTS * OUTPUT)
        assert "times" not in row
    # The target drafts for itself, so it accepts all, but for roundings of bfloat16.
    assert all(share > 0.9 for share in drafted["accepted_by_position"])
    assert drafted["tokens_per_step"] == 1 + round(sum(drafted["accepted_by_position"]), 4)
    assert drafted["counts"]["draft_passes"] == 2 * drafted["counts"]["proposals_of_steps"]
    text = page.read_text(encoding="utf-8")
    ElementTree.fromstring(text.removeprefix("<!DOCTYPE html>"))
    assert EMULATED in text

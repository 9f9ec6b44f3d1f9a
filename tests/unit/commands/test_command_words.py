# SPDX-License-Identifier: Apache-2.0
"""Words of commands: how they are split, typed and read."""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mkv_ascend.commands import advise_candidates, check, command_words, host_process
from mkv_ascend.commands.advise_candidates import AdviceError, ways_to_draft
from mkv_ascend.commands.command_words import memory_size


def speculation(draft: str | None, tokens: int | None = None) -> dict[str, Any]:
    serve = command_words.read(["T"], draft, tokens).serve
    assert serve[:2] == ["T", "--speculative-config"]
    found: dict[str, Any] = json.loads(serve[2])
    return found


@pytest.mark.parametrize(
    ("draft", "found"),
    [
        ("org/draft", {"method": "draft_model", "model": "org/draft"}),
        ("eagle3=org/head", {"method": "eagle3", "model": "org/head"}),
        ("deepseek_mtp", {"method": "deepseek_mtp"}),
        ("ngram_gpu", {"method": "ngram_gpu"}),
        ("qwen3_next_mtp=org/mtp", {"method": "qwen3_next_mtp", "model": "org/mtp"}),
        # vLLM says which methods it has.
        ("not_yet=org/draft", {"method": "not_yet", "model": "org/draft"}),
        ("/models/of=that", {"method": "draft_model", "model": "/models/of=that"}),
    ],
)
def test_a_draft_is_what_vllm_reads(draft: str, found: dict[str, str]) -> None:
    assert speculation(draft) == {"num_speculative_tokens": 3, **found}


def test_a_folder_with_the_name_of_a_method_is_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("mtp", "mtp=mine"):
        (tmp_path / name).mkdir()
        assert speculation(name, 5) == {
            "num_speculative_tokens": 5,
            "method": "draft_model",
            "model": str(tmp_path / name),
        }


@pytest.mark.parametrize(
    "option",
    ["--speculative-config", "-sc", "--speculative_config={}", "--speculative-config.method"],
)
def test_two_ways_to_draft_are_refused(option: str) -> None:
    with pytest.raises(command_words.CommandError, match="both say how to draft"):
        command_words.read(["T", option, "{}"], None, 3)


@pytest.mark.parametrize(
    "words",
    [
        ["-tp", "8", "T"],
        ["--tensor-parallel-size", "8", "T"],
        ["T", "-tp", "8"],
        ["T", "--tensor-parallel-size=8"],
        ["-tp", "8", "--", "vllm", "serve", "T"],
    ],
)
def test_ranks_may_stand_before_a_target_and_behind_it(
    words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    monkeypatch.setattr(host_process, "place", lambda *_: ({}, {}))
    monkeypatch.setattr(
        host_process, "ask", lambda question, *_: asked.extend(question["words"]) or {}
    )
    parser = argparse.ArgumentParser()
    check.add_arguments(parser)
    check.judged(check._with_options_behind(parser.parse_args(words)))
    assert asked == ["T", "--tensor-parallel-size", "8"]


def test_predictors_of_vllm_are_compared_as_mtp() -> None:
    parser = argparse.ArgumentParser()
    advise_candidates.add_arguments(parser)
    words = ["--method", "glm4_moe_mtp", "--draft", "deepseek_mtp=D", "--length", "2"]
    found = parser.parse_args(words)
    assert ways_to_draft(found.draft, []) == [("mtp", Path("D"))]
    assert ways_to_draft([], found.method) == [("mtp", None)]
    with pytest.raises(AdviceError, match="not_yet is no method that is compared"):
        ways_to_draft(["not_yet=D"], [])


@pytest.mark.parametrize(
    ("text", "value"),
    [("1", 1), ("4GiB", 4 * 1024**3), ("512 mib", 512 * 1024**2), ("2GB", 2 * 10**9)],
)
def test_bytes_with_units(text: str, value: int) -> None:
    assert memory_size(text) == value


@pytest.mark.parametrize("text", ["", "0", "1.5GiB", "-1", "4 gibi", "GiB"])
def test_bytes_refuse_what_is_not_exact(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="bytes"):
        memory_size(text)


FULL = Path("/dev/full")
COMMAND = [sys.executable, "-m", "mkv_ascend.cli", "schema"]


def test_a_command_whose_reader_has_left_ends_without_a_word() -> None:
    reads, writes = os.pipe()
    os.close(reads)
    try:
        done = subprocess.run(COMMAND, stdout=writes, stderr=subprocess.PIPE, text=True)
    finally:
        os.close(writes)
    assert done.stderr == ""
    assert done.returncode == 141


@pytest.mark.skipif(not FULL.exists(), reason="Linux has a device that is always full")
def test_a_command_that_finds_no_space_says_so_in_a_line() -> None:
    with FULL.open("w") as full:
        done = subprocess.run(COMMAND, stdout=full, stderr=subprocess.PIPE, text=True)
    said = "mkv-ascend schema: what it prints or writes: No space left on device\n"
    assert (done.stderr, done.returncode) == (said, 1)

# SPDX-License-Identifier: Apache-2.0
"""Each mistake is answered by ``mkv-ascend check`` with its code and words, and leaves nothing."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import transformers  # noqa: F401 - once, or every plan asks a process of its own

from mkv_ascend import cli
from tests.support.mistake import Mistake
from tests.support.mistakes import MISTAKES

HANG_SECONDS = 60


def with_folders(word: str, models: dict[str, str]) -> str:
    for name, folder in models.items():
        word = word.replace("{" + name + "}", folder)
    return word


def command(mistake: Mistake, models: dict[str, str]) -> list[str]:
    words = mistake.options or ("vllm", "serve")
    return ["--", *words, *(with_folders(word, models) for word in mistake.words)]


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.name)
def test_a_mistake_is_refused(
    mistake: Mistake,
    models: dict[str, str],
    capsys: pytest.CaptureFixture[str],
    record_property: Callable[[str, object], None],
) -> None:
    begin = time.process_time()
    status = cli.main(["check", "--devices", "8", "--memory", "64GiB", *command(mistake, models)])
    seconds = time.process_time() - begin
    record_property("processor_seconds", round(seconds, 3))
    said = capsys.readouterr()
    assert status == mistake.status
    assert said.out == ""
    assert said.err.startswith("mkv-ascend check: ")
    assert "Traceback" not in said.err
    for code in mistake.codes:
        assert f"[{code}]" in said.err
    for words in mistake.says:
        assert words in said.err
    if mistake.codes:
        assert "Possible: " in said.err
        assert "Change: " in said.err
    assert seconds < HANG_SECONDS


def test_the_same_as_json(models: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    for mistake in MISTAKES:
        status = cli.main(
            ["check", "--json", "--devices", "8", "--memory", "64GiB", *command(mistake, models)]
        )
        answer = json.loads(capsys.readouterr().out)
        assert status == mistake.status
        assert answer["answer"] == ("refused" if mistake.codes else "unreadable")
        codes = tuple(refusal["code"] for refusal in answer.get("refusals", ()))
        assert codes == mistake.codes
        for refusal in answer.get("refusals", ()):
            assert all(refusal[part] for part in ("asked", "possible", "change"))


def test_nothing_is_left_behind(models: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    """Other processes of the machine may come and go; ours has no children and opens no files."""
    files = len(list(Path("/proc/self/fd").iterdir()))
    for mistake in MISTAKES:
        cli.main(["check", *command(mistake, models)])
    capsys.readouterr()
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    assert children == []
    assert len(list(Path("/proc/self/fd").iterdir())) <= files


def test_there_are_enough_mistakes_each_with_its_name() -> None:
    assert len(MISTAKES) >= 60
    assert len({mistake.name for mistake in MISTAKES}) == len(MISTAKES)

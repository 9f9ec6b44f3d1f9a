# SPDX-License-Identifier: Apache-2.0
"""Chromium is installed where that can be, and its absence has a reason."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import browser

APT = """#!/bin/sh
echo "$@" >> "$LOG"
for last; do :; done
[ "$last" = update ] && exit 0
[ -n "$BROKEN" ] && {{ echo "E: Unable to locate package chromium"; exit 100; }}
[ -n "$EMPTY" ] || install -m 755 /dev/null {folder}/chromium
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder on the PATH, with an apt-get that writes down its calls."""
    found = tmp_path / "bin"
    found.mkdir()
    for tool in ("sh", "install"):
        (found / tool).symlink_to(Path("/usr/bin") / tool)
    apt = found / "apt-get"
    apt.write_text(APT.format(folder=found))
    apt.chmod(0o755)
    monkeypatch.setenv("PATH", str(found))
    monkeypatch.setenv("LOG", str(tmp_path / "log"))
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    return found


def reason(root: Path) -> str:
    return (root / browser.REASON).read_text(encoding="utf-8")


def test_it_is_installed_once(folder: Path, tmp_path: Path) -> None:
    assert browser.main(tmp_path) == browser.main(tmp_path) == 0
    calls = (tmp_path / "log").read_text().splitlines()
    assert [call.split()[-1] for call in calls] == ["update", "chromium"]
    assert browser.find() == str(folder / "chromium")
    assert not (tmp_path / browser.REASON).exists()


@pytest.mark.parametrize(
    ("what", "said"),
    [("BROKEN", "Unable to locate package chromium"), ("EMPTY", "without a browser in it")],
)
def test_what_apt_says_is_the_reason(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str, said: str
) -> None:
    monkeypatch.setenv(what, "1")
    assert browser.main(tmp_path) == 0
    assert said in reason(tmp_path)
    monkeypatch.delenv(what)
    assert browser.main(tmp_path) == 0
    assert not (tmp_path / browser.REASON).exists()


def test_nothing_is_installed_by_others_than_root(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert browser.main(tmp_path) == 0
    assert reason(tmp_path) == "not root: apt-get install chromium\n"
    assert not (tmp_path / "log").exists()


def test_without_apt_there_is_a_reason_too(folder: Path, tmp_path: Path) -> None:
    (folder / "apt-get").unlink()
    assert browser.main(tmp_path) == 0
    assert reason(tmp_path) == "no apt-get here: install chromium\n"

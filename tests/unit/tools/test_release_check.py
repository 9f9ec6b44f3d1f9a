# SPDX-License-Identifier: Apache-2.0
"""Notes of a release, and what keeps it from being made. The whole is ``make release-check``."""

from pathlib import Path

import pytest

import release_check

CHANGELOG = """\
# Changelog

## [0.30.0] - Unreleased

Later.

## [0.23.1] - 2026-12-01

### Fixed

- A fault.

## [0.23.0] - 2026-11-01

First.
"""


@pytest.fixture
def output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "CHANGELOG.md").write_text(CHANGELOG, encoding="utf-8")
    monkeypatch.setattr(release_check, "ROOT", tmp_path)
    return tmp_path


def built(output: Path, version: str) -> None:
    for name in ("mkv_ascend", "emulated_npu"):
        (output / f"{name}-{version}-py3-none-any.whl").touch()


def test_notes_are_those_of_the_tag(output: Path) -> None:
    built(output, "0.23.1")
    assert release_check.notes("v0.23.1", output) == "### Fixed\n\n- A fault."


@pytest.mark.parametrize(
    ("version", "tag", "reason"),
    [
        ("0.23.0", "v0.23.1", "v0.23.1 is not the version of emulated_npu-0.23.0|mkv_ascend-0.23"),
        ("0.30.0", "v0.30.0", r"CHANGELOG.md says Unreleased of 0.30.0; write its date"),
        ("0.24.0", "v0.24.0", r"CHANGELOG.md has no section \[0.24.0\]"),
    ],
)
def test_what_keeps_a_release_back(output: Path, version: str, tag: str, reason: str) -> None:
    built(output, version)
    with pytest.raises(release_check.ReleaseError, match=reason):
        release_check.notes(tag, output)

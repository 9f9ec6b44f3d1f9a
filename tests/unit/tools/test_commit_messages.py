# SPDX-License-Identifier: Apache-2.0
"""Messages of commits: short subjects, and a reason for what is shipped."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

import commit_messages
from commit_messages import problems

PACKAGE = "mkv_ascend"
OWN = "check.py"
SHIPPED = ["docs/index.md", "mkv_ascend/config.py"]


@pytest.mark.parametrize(
    ("message", "paths", "wrong"),
    [
        ("Say less\n", ["docs/index.md"], None),
        ("Say less\n\nWhat is said twice is read once.\n", SHIPPED, None),
        ("Say less\n\n\n# a comment of git\n", SHIPPED, "touches mkv_ascend/config.py: say why"),
        ("Say less\n\nSigned-off-by: A <a@b>\n", SHIPPED, "say why"),
        (f"{'x' * 72}\n", [], None),
        (f"{'x' * 73}\n", [], "73 characters, at most 72"),
        ("Say less\nat once\n", [], "the second line is not empty"),
        ("# nothing\n", [], "is empty"),
        (f"Say less\n{commit_messages.SCISSORS}\n+a diff\n", SHIPPED, "say why"),
    ],
)
def test_what_is_wrong_is_said(message: str, paths: list[str], wrong: str | None) -> None:
    found = problems(message, paths)
    if wrong is None:
        assert found == []
    else:
        assert wrong in found[0]


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with this tool, added after a commit with a long subject."""
    monkeypatch.setattr(commit_messages, "ROOT", tmp_path)
    monkeypatch.setattr(commit_messages, "__file__", str(tmp_path / "tools" / OWN))
    (tmp_path / "tools").mkdir()
    (tmp_path / "mkv_ascend").mkdir()
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    commit(tmp_path, f"{PACKAGE}/old.py", "o" * 80)
    commit(tmp_path, f"tools/{OWN}", "Check messages")
    return tmp_path


def commit(repository: Path, name: str, message: str) -> None:
    (repository / name).write_text(message, encoding="utf-8")
    author = ("-c", "user.name=A", "-c", "user.email=a@b", "-c", "commit.gpgsign=false")
    git = ("git", "-C", str(repository), *author)
    subprocess.run([*git, "add", name], check=True)
    subprocess.run([*git, "commit", "-q", "--no-verify", "-m", message], check=True)


def test_history_is_checked_from_now_on(
    repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert commit_messages.main([]) == 0
    commit(repository, f"{PACKAGE}/new.py", "Add a module")
    commit(repository, "readme.md", "Add a page")
    assert commit_messages.main([]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert f"no reason below the subject, and it touches {PACKAGE}/new.py" in line


def test_the_hook_reads_the_message_and_what_is_staged(repository: Path, tmp_path: Path) -> None:
    message = tmp_path / "message"
    message.write_text("Add a module\n", encoding="utf-8")
    assert commit_messages.main([str(message)]) == 0
    (repository / "mkv_ascend" / "new.py").touch()
    subprocess.run(["git", "-C", str(repository), "add", f"{PACKAGE}/new.py"], check=True)
    assert commit_messages.main([str(message)]) == 1

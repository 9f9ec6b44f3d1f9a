# SPDX-License-Identifier: Apache-2.0
"""Messages of commits: short subjects, and a reason for what is shipped."""

import subprocess
from pathlib import Path

import pytest

import commit_messages
from commit_messages import problems

PACKAGE = "mkv_ascend"
SHIPPED = ["docs/index.md", "mkv_ascend/config.py"]


@pytest.mark.parametrize(
    ("message", "paths", "wrong"),
    [
        ("docs: say less\n", ["docs/index.md"], None),
        ("docs: say less\n\nWhat is said twice is read once.\n", SHIPPED, None),
        (
            "docs: say less\n\n\n# a comment of git\n",
            SHIPPED,
            "touches mkv_ascend/config.py: say why",
        ),
        ("docs: say less\n\nSigned-off-by: A <a@b>\n", SHIPPED, "say why"),
        (f"x: {'x' * 69}\n", [], None),
        (f"x: {'x' * 70}\n", [], "73 characters, at most 72"),
        ("docs: say less\nat once\n", [], "the second line is not empty"),
        ("# nothing\n", [], "is empty"),
        ("v2/graphs, tests: pad rows\n", [], None),
        ("Say less\n", [], "not of the form `area: what`"),
        ("docs:\n", [], "not of the form `area: what`"),
        (f"docs: say less\n{commit_messages.SCISSORS}\n+a diff\n", SHIPPED, "say why"),
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
    """A repository in which subjects have a form after a commit with a long one."""
    monkeypatch.setattr(commit_messages, "ROOT", tmp_path)
    (tmp_path / "mkv_ascend").mkdir()
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    commit(tmp_path, f"{PACKAGE}/old.py", "o" * 80)
    subprocess.run(["git", "-C", tmp_path, "tag", "free"], check=True)
    monkeypatch.setattr(commit_messages, "FREE_UNTIL", "free")
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
    commit(repository, f"{PACKAGE}/new.py", "core: add a module")
    commit(repository, "readme.md", "docs: add a page")
    assert commit_messages.main([]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert f"no reason below the subject, and it touches {PACKAGE}/new.py" in line


def test_the_hook_reads_the_message_and_what_is_staged(repository: Path, tmp_path: Path) -> None:
    message = tmp_path / "message"
    message.write_text("core: add a module\n", encoding="utf-8")
    assert commit_messages.main([str(message)]) == 0
    (repository / "mkv_ascend" / "new.py").touch()
    subprocess.run(["git", "-C", str(repository), "add", f"{PACKAGE}/new.py"], check=True)
    assert commit_messages.main([str(message)]) == 1

# SPDX-License-Identifier: Apache-2.0
"""Completion in a shell: bash is asked what it would offer."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from mkv_ascend import cli
from mkv_ascend.commands import completion

ASK = """
source {script}
function_name=$(complete -p mkv-ascend | sed 's/.*-F \\([^ ]*\\).*/\\1/')
COMP_WORDS=({words}) COMP_CWORD={index}
$function_name mkv-ascend
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


@pytest.fixture
def script(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    assert cli.main(["completion", "bash"]) == 0
    path = tmp_path / "mkv-ascend.bash"
    path.write_text(capsys.readouterr().out, encoding="utf-8")
    return path


def offered(script: Path, *words: str) -> set[str]:
    """What bash offers for the last of these words behind ``mkv-ascend``."""
    asked = ASK.format(
        script=script,
        words=" ".join(f"'{word}'" for word in ("mkv-ascend", *words)),
        index=len(words),
    )
    # shtab tells files from options by the folder's content, so an empty one.
    finished = subprocess.run(
        ["bash", "-c", asked], capture_output=True, text=True, cwd=script.parent, check=True
    )
    return set(finished.stdout.split())


def test_commands_and_options_are_offered(script: Path) -> None:
    assert offered(script, "") >= set(cli.COMMANDS)
    assert offered(script, "ex") == {"explain"}
    assert offered(script, "explain", "--device-") == {"--device-memory"}
    assert offered(script, "explain", "--runner", "v") == {"v1", "v2"}
    assert offered(script, "completion", "") >= set(completion.SHELLS)


def test_directories_are_offered_where_models_are_named(script: Path) -> None:
    (script.parent / "model").mkdir()
    (script.parent / "mode.txt").touch()
    assert offered(script, "advise", "mo") == {"model"}


@pytest.mark.parametrize("shell", completion.SHELLS)
def test_each_shell_gets_a_script(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["completion", shell]) == 0
    assert "device-memory" in capsys.readouterr().out

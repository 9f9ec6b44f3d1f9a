# SPDX-License-Identifier: Apache-2.0
"""Each command that a page shows is one that there is, with options that it has."""

import importlib.util
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from mkv_ascend import cli
from mkv_ascend.commands import command_words

ROOT = Path(__file__).resolve().parents[3]
PAGES = sorted(
    [*ROOT.glob("*.md"), ROOT / "emulated_npu" / "README.md", *(ROOT / "docs").rglob("*.md")]
)
TARGETS = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
OF_THE_SYSTEM = {"docker", "export", "git", "mutmut", "pip", "source", "kubectl", "npu-smi"}
"""Not ours; most need hardware or a network."""
AN_ASSIGNMENT = re.compile(r"[A-Z_][A-Z0-9_]*=")


def shown(page: Path) -> Iterator[str]:
    """Commands behind a prompt in the blocks of a page, each in one line."""
    for block in re.findall(r"```(?:console|bash|sh)\n(.*?)```", page.read_text(), re.DOTALL):
        found = ""
        for line in re.sub(r"\\\n", " ", block).splitlines():
            if found or line.strip().startswith("$ "):
                found += f"{line}\n" if found else f"{line.strip()[2:]}\n"
            # A quotation may go on for lines.
            if found and found.count('"') % 2 == 0:
                yield found.strip()
                found = ""


COMMANDS = [
    pytest.param(command, id=f"{page.relative_to(ROOT)}: {command[:60]}")
    for page in PAGES
    for command in shown(page)
]


def test_there_are_commands() -> None:
    assert len(COMMANDS) > 30


@pytest.mark.parametrize("command", COMMANDS)
def test_a_shown_command_is_one_that_there_is(command: str) -> None:
    check(shlex.split(command, comments=True))


def check(words: list[str]) -> None:
    """Fail if the command, or the one that it starts, is none that there is."""
    while words and AN_ASSIGNMENT.match(words[0]):
        words = words[1:]
    if not words or Path(words[0]).name in OF_THE_SYSTEM:
        return
    program, given = Path(words[0]).name, words[1:]
    if program == "make":
        assert {word for word in given if "=" not in word} <= TARGETS
    elif program == "mkv-ascend":
        parsed = cli.build_parser().parse_args(given)
        if parsed.command_name in ("check", "explain"):
            assert command_words.read(parsed.command).serve
        elif getattr(parsed, "command", None):
            check([word for word in parsed.command if word != "--"])
    elif program == "emulated-npu":
        check(given[given.index("--") + 1 :])
    elif program == "vllm" and given[0] != "bench":  # its client is not ours
        check_vllm(words)
    elif program in ("python", "pytest"):
        check_python(given if program == "python" else ["-m", "pytest", *given])
    else:
        assert program == "vllm", f"{program}: no command of ours"


def check_vllm(words: list[str]) -> None:
    """A server's command; its options are read by vLLM alone."""
    assert command_words.read(["--", *words]).serve


def check_python(given: list[str]) -> None:
    """Fail if there is no such module or file."""
    if given[0] == "-m":
        assert importlib.util.find_spec(given[1]) is not None
    elif given[0] != "-c" and given[0].startswith("tools/"):
        assert (ROOT / given[0]).exists()
    for word in given:
        if word.startswith(("tests/", "tools/", "benchmarks/")):
            assert (ROOT / word.partition("::")[0]).exists(), word

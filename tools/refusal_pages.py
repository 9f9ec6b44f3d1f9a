# SPDX-License-Identifier: Apache-2.0
"""Every refusal with commands that get it, for docs/troubleshooting.md.

The commands are the mistakes that the tests make. The messages are what ``mkv-ascend check`` says
of them now, with the default host. Codes that only another host has stand there with their meaning
alone.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
import shlex
import sys
import tempfile
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from mkv_ascend import cli

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from tests.support.mistake import Mistake  # noqa: E402
from tests.support.mistaken_models import CHANGED  # noqa: E402
from tests.support.mistakes import MISTAKES  # noqa: E402

CONFIGS = ROOT / "tests" / "data" / "configs"
DEVICE = ("--devices", "8", "--memory", "64GiB")
NAMES = re.compile(r"\{([A-Za-z0-9._-]+)\}")
WIDTH = 100
SHOWN = "/models"
"""Where the page says that models lie."""


def markdown() -> str:
    """A section for each code in the order of docs/check.md, then unreadable commands."""
    meanings = meanings_of((ROOT / "docs" / "check.md").read_text(encoding="utf-8"))
    with models() as folders:
        answers = {mistake.name: answer(mistake, folders) for mistake in MISTAKES}
    alone = [mistake for mistake in MISTAKES if len(mistake.codes) == 1]
    parts = [
        section(f"`{code}`", meaning, [m for m in alone if m.codes == (code,)], answers)
        for code, meaning in meanings.items()
    ]
    several = [mistake for mistake in MISTAKES if len(mistake.codes) > 1]
    unreadable = [mistake for mistake in MISTAKES if not mistake.codes]
    parts.append(section("Several at once", "Every reason is told.", several, answers))
    parts.append(
        section("Unreadable commands", "The exit status of `check` is 2.", unreadable, answers)
    )
    return "\n\n".join(parts)


def meanings_of(page: str) -> dict[str, str]:
    """Code -> what is refused and what is possible, of the table in docs/check.md."""
    found: dict[str, str] = {}
    for row in page.partition("## What is refused")[2].splitlines():
        if row.startswith("| `"):
            codes, refused, possible = (cell.strip() for cell in row.strip("|").split("|"))
            text = f"Refused: {refused}." + (f" Possible: {possible}." if possible else "")
            found |= dict.fromkeys(re.findall(r"`([a-z-]+)`", codes), text)
    return found


@contextlib.contextmanager
def models() -> Iterator[dict[str, str]]:
    """Name -> folder, of the published configurations and the changed ones."""
    folders = {path.parent.name: str(path.parent) for path in CONFIGS.glob("*/config.json")}
    with tempfile.TemporaryDirectory() as place:
        for name, (base, changes) in CHANGED.items():
            folder = Path(place) / name
            folder.mkdir()
            values = json.loads((CONFIGS / base / "config.json").read_text(encoding="utf-8"))
            (folder / "config.json").write_text(json.dumps({**values, **changes}))
            folders[name] = str(folder)
        yield folders


def placed(word: str, folders: Mapping[str, str]) -> str:
    """``word`` with the folder in place of each ``{NAME}``."""
    for name, folder in folders.items():
        word = word.replace("{" + name + "}", folder)
    return word


def answer(mistake: Mistake, folders: Mapping[str, str]) -> str:
    """What ``mkv-ascend check`` says, with the page's folders."""
    words = [placed(word, folders) for word in mistake.words]
    said = io.StringIO()
    with contextlib.redirect_stderr(said):
        cli.main(["check", *DEVICE, "--", *(mistake.options or ("vllm", "serve")), *words])
    text = said.getvalue().strip().removeprefix("mkv-ascend check: ")
    for name, folder in folders.items():
        text = text.replace(folder, f"{SHOWN}/{name}")
    return text


def section(
    title: str, meaning: str, mistakes: Sequence[Mistake], answers: Mapping[str, str]
) -> str:
    """A heading, what it means, and each command with its message."""
    shown = [example(mistake, answers[mistake.name]) for mistake in mistakes]
    return "\n\n".join([f"### {title}", meaning, *shown])


def example(mistake: Mistake, said: str) -> str:
    """A command and its message; the message is wrapped for reading."""
    names = {match: f"{SHOWN}/{match}" for word in mistake.words for match in NAMES.findall(word)}
    words = [placed(word, names) for word in mistake.words]
    command = shlex.join([*(mistake.options or ("vllm", "serve")), *words])
    lines = [wrapped(line) for line in said.splitlines()]
    return "\n".join(["```text", f"$ {command}", *lines, "```"])


def wrapped(line: str) -> str:
    """``line`` in lines of at most 100 characters where it has spaces."""
    return textwrap.fill(
        line,
        WIDTH,
        subsequent_indent="    ",
        break_long_words=False,
        break_on_hyphens=False,
    )

# SPDX-License-Identifier: Apache-2.0
"""Every refusal with an example of what is said, for docs/troubleshooting.md.

The messages are those of the rules for configurations that the tests judge. Codes that only a
model that is built or a host's own words give stand there with their meaning alone.
"""

from __future__ import annotations

import re
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path

from mkv_ascend.rules.refusal import text_of
from mkv_ascend.rules.table import refusals

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from tests.support.rule_cases import REFUSED  # noqa: E402

WIDTH = 100


def markdown() -> str:
    """A section for each code in the order of docs/check.md."""
    meanings = meanings_of((ROOT / "docs" / "check.md").read_text(encoding="utf-8"))
    said: dict[str, list[str]] = {}
    for code, facts in REFUSED.values():
        said.setdefault(code, []).append(text_of(refusals(facts)))
    return "\n\n".join(
        section(f"`{code}`", meaning, said.get(code, [])) for code, meaning in meanings.items()
    )


def meanings_of(page: str) -> dict[str, str]:
    """Code -> what is refused and what is possible, of the table in docs/check.md."""
    found: dict[str, str] = {}
    for row in page.partition("## What is refused")[2].splitlines():
        if row.startswith("| `"):
            codes, refused, possible = (cell.strip() for cell in row.strip("|").split("|"))
            text = f"Refused: {refused}." + (f" Possible: {possible}." if possible else "")
            found |= dict.fromkeys(re.findall(r"`([a-z-]+)`", codes), text)
    return found


def section(title: str, meaning: str, said: Sequence[str]) -> str:
    """A heading, what it means, and the shortest message, wrapped for reading.

    One shows how it reads; all of them would be a page that nobody does.
    """
    lines = map(wrapped, min(said, key=len).splitlines()) if said else ()
    example = ["\n".join(["```text", *lines, "```"])] if said else []
    return "\n\n".join([f"### {title}", meaning, *example])


def wrapped(line: str) -> str:
    """``line`` in lines of at most 100 characters where it has spaces."""
    return textwrap.fill(
        line,
        WIDTH,
        subsequent_indent="    ",
        break_long_words=False,
        break_on_hyphens=False,
    )

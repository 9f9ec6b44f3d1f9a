# SPDX-License-Identifier: Apache-2.0
"""The inventory of docs/patches.md, from the records that stand beside the replacements.

A row has what a reader compares; a record and patches.toml have the rest (what it counts on, when
it can go).
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

import foreign_names
from foreign_names import Placed
from mkv_ascend.adapters.patching import Record
from patch_notes import NOT_REPORTED, Notes

SHOWN = foreign_names.ROOT / "docs" / "without_patch.json"
"""Version of vllm-ascend -> record -> target -> the test that was seen to fail without it.

``without_patch.py --record`` writes it.
"""
HEAD = (
    "| name | replaces | why | upstream | test |",
    "| --- | --- | --- | --- | --- |",
)
FEWEST_WORDS = 12
"""A first sentence below this says what holds, and the second one what goes wrong."""
SENTENCE_END = re.compile(r"(?<=[.])\s+(?=[A-Zv])")
MOST_LINKS = 3


def markdown() -> str:
    """One table for each folder of the adapters that has records."""
    folders: dict[str, list[Placed]] = {}
    for placed in foreign_names.records(foreign_names.all_sources()):
        folder = placed.file.parent.relative_to(foreign_names.ADAPTERS.parent).as_posix()
        folders.setdefault(folder, []).append(placed)
    return "\n\n".join(_section(folder, of) for folder, of in folders.items())


def _section(folder: str, of: Sequence[Placed]) -> str:
    rows = (_row(placed.record, placed.notes) for placed in of)
    return "\n".join((f"## `{folder}`", "", *HEAD, *rows))


def _row(record: Record, notes: Notes) -> str:
    cells = (
        record.name,
        ", ".join(f"`{short_target(target)}`" for target in record.targets),
        first_sentence(notes.why),
        _upstream(notes.upstream),
        _tests(notes.tests),
    )
    return f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"


def short_target(target: str) -> str:
    """The last part of the module, and the attribute: ``mla_v1:AscendMLABackend.get_impl_cls``."""
    module, _, name = target.partition(":")
    return f"{module.rpartition('.')[2]}:{name}"


def first_sentence(text: str) -> str:
    """The first sentence, and those behind it as long as all are short."""
    told = ""
    for sentence in SENTENCE_END.split(text):
        told = f"{told} {sentence}".strip()
        if len(told.split()) >= FEWEST_WORDS:
            break
    return told


def _upstream(addresses: Sequence[str]) -> str:
    """Links to issues and pull requests."""
    told = []
    for address in addresses[:MOST_LINKS]:
        *_, repository, _, number = address.split("/")
        told.append(f"[{repository} {number}]({address})")
    return ", ".join(told) or NOT_REPORTED


def _tests(tests: Sequence[str]) -> str:
    """The first test; how many there are beside it."""
    file, _, function = tests[0].removeprefix("tests/").partition("::")
    more = f" and {len(tests) - 1} more" if len(tests) > 1 else ""
    return f"`{file}`{f' `{function}`' if function else ''}{more}"


def shown() -> dict[str, dict[str, dict[str, str]]]:
    """What ``SHOWN`` holds."""
    found: dict[str, dict[str, dict[str, str]]] = json.loads(SHOWN.read_text(encoding="utf-8"))
    return found

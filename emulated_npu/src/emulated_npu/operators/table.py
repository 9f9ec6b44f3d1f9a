# SPDX-License-Identifier: Apache-2.0
"""Write docs/reference/operators.md from the registry.

``python -m emulated_npu.operators.table`` writes the page, ``--check`` says (exit status 1)
if the page on disk is not the one that would be written.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from pathlib import Path

from emulated_npu.operators import registry
from emulated_npu.operators.registry import OperatorEntry

PAGE = Path(__file__).parents[4] / "docs" / "reference" / "operators.md"

HEAD = """\
# Operators of the emulated NPU

Made by `python -m emulated_npu.operators.table` from the registry; do not edit.

Every operator that the emulated NPU has, by the file that holds it. *Source* is where its semantics
are documented, *limits* is what the strict check allows (and where hardware is followed rather
than the documentation), *missing* is what raises `NotImplementedError`. An operator that is not
listed here raises `NotImplementedError` with its name. Names without a prefix are `torch_npu`'s;
`_C_ascend` are the custom operators of vllm-ascend, `fla_npu` those of `fla_npu.ops.ascendc`,
`cann_ops_transformer` those of that package.
"""


def page() -> str:
    """The whole page as Markdown."""
    registry.load_all()
    entries = sorted(registry.OPERATORS.values(), key=lambda entry: (entry.module, entry.key))
    parts = [HEAD, f"{len(entries)} operators.\n"]
    for module, group in itertools.groupby(entries, key=lambda entry: entry.module):
        parts.append(_section(module, list(group)))
    return "\n".join(parts)


def _section(module: str, entries: list[OperatorEntry]) -> str:
    path = module.removeprefix("emulated_npu.").replace(".", "/")
    lines = [f"## {path}.py\n", "| operator | source | limits | missing |", "|---|---|---|---|"]
    lines += [_row(entry) for entry in entries]
    return "\n".join(lines) + "\n"


def _row(entry: OperatorEntry) -> str:
    limits = [entry.limits]
    if entry.host_arguments:
        limits.append(f"On the host: {_names(entry.host_arguments)}.")
    if entry.writes:
        limits.append(f"Written in place: {_names(entry.writes)}.")
    cells = (f"`{entry.key}`", entry.source, " ".join(filter(None, limits)), entry.missing)
    return "| " + " | ".join(_cell(cell) for cell in cells) + " |"


def _names(names: tuple[str, ...]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|") or "-"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="only say whether the page is current")
    wanted = page()
    if not parser.parse_args().check:
        PAGE.parent.mkdir(parents=True, exist_ok=True)
        PAGE.write_text(wanted, encoding="utf-8")
        print(f"wrote {PAGE}")
        return 0
    if PAGE.exists() and PAGE.read_text(encoding="utf-8") == wanted:
        return 0
    print(f"{PAGE} is not current; run python -m emulated_npu.operators.table")
    return 1


if __name__ == "__main__":
    sys.exit(main())

# SPDX-License-Identifier: Apache-2.0
"""Write the generated pages and parts of docs/ anew (`make generate`).

    .venv/bin/python tools/generate_docs.py            write
    .venv/bin/python tools/generate_docs.py --check    exit status 1 if one is out of date

A page may be written as a whole or have its generated part between two marks::

    <!-- generated: begin -->
    <!-- generated: end -->
"""

from __future__ import annotations

import argparse
import functools
import json
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import catalog_pages
import class_pages
import cli_pages
import hosts
import matrix_pages
import patch_pages
import recipe_pages
import regression_pages
import tested_pages
from emulated_npu import variables
from mkv_ascend import envs, metrics
from mkv_ascend.config import options_schema

ROOT = Path(__file__).resolve().parent.parent
BEGIN = "<!-- generated: begin -->"
END = "<!-- generated: end -->"


@dataclass(frozen=True)
class Page:
    """A page with a generated part."""

    path: str
    content: Callable[[], str]
    default_host: bool = False
    """It says what the default host does: elsewhere it can be neither written nor compared."""

    @property
    def can_be_made(self) -> bool:
        """With the installed host."""
        default = hosts.HOSTS[hosts.DEFAULT].vllm_ascend
        return not self.default_host or metadata.version("vllm-ascend") == default

    def expected(self, present: str) -> str:
        """The page as it should be, given the page as it is; ValueError when it has no marks."""
        pattern = re.compile(f"({re.escape(BEGIN)}\n).*?({re.escape(END)})", re.DOTALL)
        if len(pattern.findall(present)) != 1:
            raise ValueError(f"{self.path} must have one part between {BEGIN} and {END}")
        return pattern.sub(lambda match: f"{match[1]}\n{self.content()}\n{match[2]}", present)


def environment_variables() -> str:
    """Both tables: of the plugin, and of the emulated NPU."""
    of_the_emulator = f"Of the emulated NPU:\n\n{variables.markdown_table()}"
    return f"{envs.markdown_table()}\n{of_the_emulator}"


def metrics_table() -> str:
    """Every metric with its type, labels and meaning."""
    lines = ["| metric | type | labels | meaning |", "| --- | --- | --- | --- |"]
    for metric in metrics.METRICS:
        labels = ", ".join(f"`{label}`" for label in metric.labels)
        lines.append(f"| `{metric.name}` | {metric.kind} | {labels} | {metric.help} |")
    return "\n".join(lines) + "\n"


def schema_of_options() -> str:
    """As the command prints it."""
    return f"```json\n{json.dumps(options_schema(), indent=2)}\n```"


PAGES = (
    Page("docs/attention_backends.md", lambda: catalog_pages.tables().strip() + "\n"),
    Page("docs/matrix.md", lambda: matrix_pages.tables(matrix_pages.read()) + "\n"),
    Page(
        "docs/environment_variables.md",
        environment_variables,
    ),
    Page("docs/metrics.md", metrics_table),
    Page("docs/reference/cli.md", cli_pages.tables),
    Page("docs/reference/options_schema.md", schema_of_options),
    Page("docs/patches.md", lambda: patch_pages.markdown().strip() + "\n"),
    Page("docs/recipes/index.md", recipe_pages.table),
    Page("docs/regressions.md", regression_pages.table),
    Page("docs/text_classes.md", class_pages.tables),
    Page("docs/tested.md", lambda: tested_pages.tables() + "\n"),
    *(
        Page(
            f"docs/recipes/{recipe['slug']}.md",
            functools.partial(recipe_pages.page, recipe),
            default_host=True,
        )
        for recipe in recipe_pages.recipes()
    ),
)


def out_of_date(root: Path, pages: Sequence[Page] = PAGES) -> list[str]:
    """The pages whose generated part is not what would be written now."""
    stale = []
    for page in pages:
        if not page.can_be_made:
            continue
        present = (root / page.path).read_text(encoding="utf-8")
        if page.expected(present) != present:
            stale.append(page.path)
    return stale


def write(root: Path, pages: Sequence[Page] = PAGES) -> list[str]:
    """Write what is out of date; return which pages those were."""
    stale = out_of_date(root, pages)
    for page in pages:
        if page.path in stale:
            path = root / page.path
            path.write_text(page.expected(path.read_text(encoding="utf-8")), encoding="utf-8")
    return stale


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing, only tell")
    options = parser.parse_args(arguments)
    stale = out_of_date(ROOT) if options.check else write(ROOT)
    for path in stale:
        print(f"{path} is out of date: run `make generate`" if options.check else f"wrote {path}")
    return 1 if options.check and stale else 0


if __name__ == "__main__":
    sys.exit(main())

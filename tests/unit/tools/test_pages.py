# SPDX-License-Identifier: Apache-2.0
"""Pages and a dashboard: what they name exists, and what there is they name."""

import ast
import json
import re
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

import matrix_pages
import recipe_pages
from mkv_ascend import metrics
from recipe_pages import Recipe
from tests.support.rule_cases import REFUSED


def test_no_published_cell_fails() -> None:
    """A cell works, or is refused with a reason, on each host and in graphs."""
    for published in matrix_pages.read()["cells"]:
        name = f"{published['target']}/{published['draft']}"
        hosts = [published, *published.get("hosts", {}).values()]
        for host in hosts[published["ours"] is None :]:
            assert host["ours"] in ("works", "refused"), name
            assert "fails" not in (host.get("graph"), host.get("hits")), name
            assert (host["ours"] == "refused") == bool(host["reason"]), name


def test_readme_has_the_counts_of_the_matrix() -> None:
    """Of stock those pairs alone count whose result need not be one of the tiny models' sizes."""
    cells = matrix_pages.read()["cells"]
    ours = [cell["ours"] for cell in cells if cell["ours"] is not None]
    counted, right, exact = matrix_pages.stock_counts({"cells": cells})
    assert counted < len(ours)
    for page in ("README.md", "README.zh.md"):
        text = (matrix_pages.PATH.parents[1] / page).read_text(encoding="utf-8")
        (line,) = [line for line in text.splitlines() if "docs/matrix.md" in line]
        numbers = [int(number) for number in re.findall(r"(?<![.\d])\d+(?![.\d])", line)]
        left_out = len(ours) - counted
        expected = [len(ours), counted, right, exact, left_out, ours.count("works")]
        assert numbers[:6] == expected, page


@pytest.mark.parametrize(
    ("stock", "reason", "columns"),
    [
        ("works", None, ("yes", "yes", "yes")),
        ("refused", "drafts in one group", ("no", "", "")),
        ("fails", "AssertionError", ("no", "", "")),
        ("fails", "3 of 8 requests got other tokens", ("yes", "no", "")),
        ("fails", "2 of 9 draft tokens are not the draft's own", ("yes", "yes", "no: 0.60 (0.75)")),
        (
            "fails",
            "Assertion failed, Cannot align ssm_page_size and attn_page_size.",
            ("not counted", "", ""),
        ),
        (None, None, ("no method", "", "")),
    ],
)
def test_stock_has_three_columns(stock, reason, columns) -> None:
    cell = {"stock": stock, "stock_reason": reason}
    cell |= {"stock_acceptance": 0.6, "reference_acceptance": 0.75}
    assert matrix_pages.stock_columns(cell) == columns


@pytest.mark.parametrize("recipe", recipe_pages.recipes(), ids=lambda recipe: recipe["slug"])
def test_a_recipe_is_served(recipe: Recipe) -> None:
    """As check said; tests/emulated/platform/test_recipes.py asks again."""
    found = recipe_pages.answers()[recipe["slug"]]
    assert found["answer"] == "served"
    asked = recipe["speculative_config"]
    if asked.get("method") != "suffix":
        assert found["tokens_per_proposal"] == asked["num_speculative_tokens"]
    assert found["requests"] is None if found["unplanned"] else found["requests"] >= 1


ROOT = Path(__file__).resolve().parents[3]
PASSED_ON = {"early_check.py", "layers.py"}
"""Files with a warning whose text is made elsewhere."""


def page(name: str) -> str:
    return (ROOT / "docs" / name).read_text(encoding="utf-8")


def sources() -> Iterator[tuple[Path, ast.Module]]:
    """Each file of the package."""
    for path in (ROOT / "mkv_ascend").rglob("*.py"):
        yield path, ast.parse(path.read_text(encoding="utf-8"))


def codes_of_ours() -> set[str]:
    """The codes that rules name where they refuse."""
    return {
        node.args[0].value
        for _, tree in sources()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and getattr(node.func, "id", "") in ("Refusal", "Rule")
        and node.args
        and isinstance(node.args[0], ast.Constant)
    }


def warnings_of_ours() -> Iterator[tuple[str, str]]:
    """File name, format of each warning."""
    for path, tree in sources():
        for node in ast.walk(tree):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and node.func.attr in ("warning", "error", "exception", "critical")
                and getattr(node.func.value, "id", "") == "logger"
            ):
                words = node.args[0]
                text = words.value if isinstance(words, ast.Constant) else "%s"
                yield path.name, str(text)


def test_every_warning_is_explained() -> None:
    table = page("troubleshooting.md").partition("## Warnings in the log")[2].partition("\n## ")[0]
    explained = [row.split("|")[1].strip(" `") for row in table.splitlines() if row[:3] == "| `"]
    # A row has "..." where the format has a value; what follows the last one need not be there.
    patterns = [".*".join(re.escape(part) for part in row.split("...")) for row in explained]
    used = set()
    for file, text in warnings_of_ours():
        if text == "%s" and file in PASSED_ON:
            continue
        found = [pattern for pattern in patterns if re.match(pattern, text)]
        assert found, f"{file}: {text!r} is not in the table"
        used.update(found)
    assert used == set(patterns), "a row of the table is no warning any more"


def test_every_code_has_a_section() -> None:
    sections = re.findall(r"^### `([a-z-]+)`$", page("refusals.md"), flags=re.MULTILINE)
    assert len(sections) == len(set(sections))
    assert set(sections) == codes_of_ours() | {code for code, _ in REFUSED.values()}


REPOSITORY = Path(__file__).resolve().parents[3]
DASHBOARD = json.loads((REPOSITORY / "docs/dashboards/mkv_ascend.json").read_text())
NAME = re.compile(r"\b(?:vllm:|mkv_ascend_)[a-z_]+")
OURS = {metric.name: metric for metric in metrics.METRICS}


def expressions() -> list[str]:
    return [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]


def names_of_vllm() -> set[str]:
    """Names in the sources of the installed vLLM, whose counters are written without ``_total``."""
    spec = find_spec("vllm")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    folder = Path(spec.submodule_search_locations[0], "v1")
    sources = [*folder.glob("metrics/*.py"), folder / "spec_decode/metrics.py"]
    return {name for path in sources for name in NAME.findall(path.read_text())}


def test_every_metric_is_one_that_we_or_vllm_export() -> None:
    asked = {name for expression in expressions() for name in NAME.findall(expression)}
    theirs = names_of_vllm()
    for name in asked:
        assert name in OURS or name.removesuffix("_total") in theirs, name
    assert set(OURS) <= asked, "a metric that no panel shows"

# SPDX-License-Identifier: Apache-2.0
"""The corpus of public reports: each has what goes wrong and a test of ours that exists."""

import ast
import functools
import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
REPORTS = json.loads((ROOT / "tests" / "data" / "regressions.json").read_text(encoding="utf-8"))
NUMBER = re.compile(r"vllm-project/vllm(-ascend)?#[1-9]\d+")


@functools.cache
def functions_of(file: str) -> frozenset[str]:
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    return frozenset(node.name for node in tree.body if isinstance(node, ast.FunctionDef))


def test_there_are_enough_each_once() -> None:
    numbers = [one["report"] for one in REPORTS]
    assert len(numbers) >= 30
    assert len(set(numbers)) == len(numbers)
    assert sum("stock" in one for one in REPORTS) >= 10


@pytest.mark.parametrize("report", REPORTS, ids=lambda one: one["report"])
def test_a_report_says_what_goes_wrong_and_names_tests_that_exist(report: dict[str, str]) -> None:
    assert NUMBER.fullmatch(report["report"])
    assert set(report) <= {"report", "title", "wrong", "test", "stock"}
    assert all(report[field] for field in ("title", "wrong"))
    for field in ("test", "stock"):
        file, _, function = report.get(field, report["test"]).partition("::")
        assert function.startswith("test_")
        assert function in functions_of(file)

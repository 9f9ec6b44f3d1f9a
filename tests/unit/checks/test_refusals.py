# SPDX-License-Identifier: Apache-2.0
"""Every refusal is documented, tried by a mistake, and made of three parts."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from mkv_ascend.checks.layer_requests import requests_of_layers
from mkv_ascend.checks.model import ModelFacts
from mkv_ascend.checks.model_layer import ModelLayer, NamedLayer
from mkv_ascend.checks.refusal import Refusal, RefusedError
from mkv_ascend.layout.kind import Kind, Role
from tests.support.mistakes import MISTAKES

REPOSITORY = Path(__file__).resolve().parents[3]
UNTRIED = {"draft-adapter", "draft-caches", "draft-option", "executor", "kept-states", "runner"}
"""Codes of test_draft_options.py, test_speculation.py, test_host_rules.py and test_runner_v2.py."""
UNTRIED |= {"weights"}
"""Of test_weight_files.py, because models of mistakes have no weights."""


def codes_in_the_code() -> set[str]:
    """First arguments of ``Refusal`` and of ``refused``."""
    found = set()
    for path in (REPOSITORY / "mkv_ascend" / "checks").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.args:
                first = node.args[0]
                if node.func.id in ("Refusal", "refused") and isinstance(first, ast.Constant):
                    found.add(str(first.value))
    return found


def test_every_code_is_documented_and_no_other() -> None:
    page = (REPOSITORY / "docs" / "check.md").read_text()
    rows = page.partition("## What is refused")[2].splitlines()
    cells = [row.split("|")[1] for row in rows if row.startswith("| `")]
    assert {code for cell in cells for code in re.findall(r"`([a-z-]+)`", cell)} == (
        codes_in_the_code()
    )


def test_every_code_is_tried() -> None:
    tried = {code for mistake in MISTAKES for code in mistake.codes}
    assert tried | UNTRIED == codes_in_the_code()


def test_one_refusal_is_a_sentence_and_several_are_a_list() -> None:
    one = Refusal("a", "x is 3", "1 or 2", "write 1")
    words = "x is 3. Possible: 1 or 2. Change: write 1."
    assert str(RefusedError([one])) == f"this cannot be served [a]: {words}"
    two = str(RefusedError([one, Refusal("b", "y is 4", "5", "write 5")]))
    assert two.splitlines()[0] == "this cannot be served, for 2 reasons:"
    assert two.splitlines()[1] == f"- [a] {words}"


def test_layers_that_are_known_by_name_ask_for_what_their_model_does() -> None:
    layer = ModelLayer(Kind.FULL_ATTENTION, head_size=128, has_sink=True)
    named = [NamedLayer(role.value, role, "bfloat16", layer) for role in Role]
    target = ModelFacts(Role.TARGET, "target", {}, {"model_type": "llama"})
    draft = ModelFacts(Role.DRAFT, "draft", {}, {"attn_logit_softcapping": 50.0})
    facts: Any = SimpleNamespace(layers=named, target=target, draft=draft)
    asked = {request.name: request.arguments for request in requests_of_layers(facts)}
    assert asked == {"target": {"sinks"}, "draft": {"sinks", "logits_soft_cap"}}

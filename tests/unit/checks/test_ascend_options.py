# SPDX-License-Identifier: Apache-2.0
"""Options of vllm-ascend in ``--additional-config``: which are known, and what they ask for."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from mkv_ascend.adapters import installed
from mkv_ascend.checks import about_ascend_options
from tests.support import hosts
from tests.support.host_checks import EQUAL_PAGES, SHARED, refused


def names_in_the_source() -> Iterator[str]:
    """Fields of AscendConfig, and what is taken out or looked up before it is made."""
    found = find_spec("vllm_ascend")
    assert found is not None
    assert found.submodule_search_locations
    source = Path(found.submodule_search_locations[0], "ascend_config.py").read_text()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ClassDef) and node.name == "AscendConfig":
            yield from (ast.unparse(x.target) for x in node.body if isinstance(x, ast.AnnAssign))
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "_NON_USER_INPUT_KEYS":
            yield from ast.literal_eval(node.value)


@hosts.only_on("vllm_ascend_0_30", "0.23.0 refuses no name")
def test_the_names_are_those_of_the_source() -> None:
    named = {name for name in names_in_the_source() if not name.startswith("_")}
    assert installed.rules().ascend_options == named


def test_one_host_refuses_names_that_it_does_not_know(
    models: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    given = {"weight_prefetch_config": {}, "mkv_ascend": {}, "enable_mlapo": True}
    engine: dict[str, Any] = {"model": models["Llama-3.1-8B"], "additional_config": given}
    assert refused(engine, SHARED) == {}
    said = refused(engine, EQUAL_PAGES)
    assert set(said) == {"additional-config"}
    assert "--additional-config has weight_prefetch_config, which" in said["additional-config"]
    monkeypatch.setattr(about_ascend_options, "find_spec", lambda name: name == "vllm_omni")
    assert refused(engine, EQUAL_PAGES) == {}


def test_training_can_ask_for_what_does_not_depend_on_the_batch(models: dict[str, str]) -> None:
    """vllm-ascend 0.30.0rc2 then sets VLLM_BATCH_INVARIANT, before it chooses backends."""

    def said(**options: Any) -> dict[str, str]:
        given = {"rl_config": {"enable_batch_invariant": True, **options}}
        engine = {"model": models["gemma-3-1b"], "additional_config": given}
        return refused({**engine, "enforce_eager": True}, EQUAL_PAGES)

    assert said() == {}
    assert "VLLM_BATCH_INVARIANT" in said(enabled=True)["backend"]

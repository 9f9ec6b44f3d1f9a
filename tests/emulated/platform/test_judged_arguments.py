# SPDX-License-Identifier: Apache-2.0
"""What check lets vLLM look at before a configuration is made: nothing starts, nothing is slow."""

import sys
import types
import warnings
from types import SimpleNamespace

import pytest
from vllm.entrypoints.cli import serve
from vllm.model_executor.models import registry

from mkv_ascend.adapters.common.judge import command

STARTED = {
    "run_headless": ["--headless"],
    "run_multi_api_server": ["--api-server-count", "2"],
    "run_dp_supervisor": [
        *("--data-parallel-size", "2", "--data-parallel-size-local", "2"),
        "--data-parallel-multi-port-external-lb",
    ],
}


@pytest.mark.parametrize("name", STARTED)
def test_no_server_is_started(name, monkeypatch):
    monkeypatch.setattr(serve, "uvloop", SimpleNamespace())
    for starter in STARTED:
        refused = f"{starter} would start processes"
        monkeypatch.setattr(serve, starter, lambda *_, why=refused: pytest.fail(why))
    command.look_at(command.read(["a/model", *STARTED[name]]))


def test_the_server_of_this_process_is_not_run_and_nobody_waits_for_it(monkeypatch):
    for name in (*STARTED, "uvloop"):
        monkeypatch.setattr(serve, name, SimpleNamespace())
    arguments = command.read(["a/model"])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        command.look_at(arguments)
    assert arguments.model == "a/model"


def test_classes_of_models_are_looked_at_in_a_copy_of_this_process(monkeypatch):
    """vLLM's own processes import everything once more: 8 s for each model."""
    monkeypatch.setattr(registry, "_run_in_subprocess", registry._run_in_subprocess)
    monkeypatch.setitem(sys.modules, "imported_before", types.ModuleType("imported_before"))
    command.look_at_classes_in_copies()
    assert registry._run_in_subprocess(lambda: "imported_before" in sys.modules)

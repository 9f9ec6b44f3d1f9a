# SPDX-License-Identifier: Apache-2.0
"""vLLM's command ends with the sentence; a program gets the exception."""

import sys
from types import ModuleType

import pytest

from mkv_ascend.adapters.refusal import StartUpRefused, refuse

ERROR = ValueError("attention.target is 'x'; allowed: mla")


def started_as(monkeypatch, module_name, program):
    """Make this process look as if it was started by a command."""
    main = ModuleType("__main__")
    if module_name is not None:
        main.__spec__ = type("Specification", (), {"name": module_name})()
    monkeypatch.setitem(sys.modules, "__main__", main)
    monkeypatch.setattr(sys, "argv", [program])


@pytest.mark.parametrize(
    ("module_name", "program"),
    [
        (None, "/somewhere/bin/vllm"),
        ("vllm.entrypoints.cli.main", "main.py"),
        ("vllm.entrypoints.openai.api_server", "api_server.py"),
    ],
)
def test_vllms_own_command_ends_with_the_message_alone(monkeypatch, module_name, program):
    started_as(monkeypatch, module_name, program)
    with pytest.raises(StartUpRefused) as refusal:
        refuse(ERROR)
    assert refusal.value.code == f"mkv_ascend: {ERROR}"


@pytest.mark.parametrize(
    ("module_name", "program"),
    [(None, "my_script.py"), ("my_package.main", "vllm"), (None, "-c"), (None, "")],
)
def test_a_program_can_catch_the_error_itself(monkeypatch, module_name, program):
    started_as(monkeypatch, module_name, program)
    with pytest.raises(ValueError, match="allowed: mla") as refusal:
        refuse(ERROR)
    assert refusal.value is ERROR

# SPDX-License-Identifier: Apache-2.0
"""How a refusal is told: to vLLM's command, to a program, of a silent assertion, in one line."""

import io
import json
import sys
from types import ModuleType
from typing import Any

import pytest

from mkv_ascend.adapters.common.judge.front_check import assertion_of, of_error, words_of
from mkv_ascend.adapters.questions import MARK, answer
from mkv_ascend.adapters.refusal import StartUpRefused, refuse
from tests.support.silent_refusals import (
    Checked,
    refuse_all,
    refuse_fp8,
    refuse_with_words,
    with_cache,
)

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


def raised(function: Any, *given: Any) -> BaseException:
    with pytest.raises(Exception) as found:
        function(*given)
    return found.value


@pytest.mark.parametrize("error", [raised(refuse_fp8, with_cache("fp8")), raised(Checked)])
def test_the_statement_and_the_option_are_told(error: BaseException) -> None:
    refusal = of_error(error)
    assert "asserts not config, where config.cache_config.cache_dtype == 'fp8'" in refusal.asked
    assert "--kv-cache-dtype: without words" in refusal.asked
    assert "silent_refusals.py:" in refusal.asked
    assert "pydantic" not in refusal.asked
    assert refusal.possible == "values of --kv-cache-dtype that make it hold"
    assert refusal.change == "change --kv-cache-dtype, or leave it out"


def test_where_no_option_is_read_none_is_named() -> None:
    refusal = of_error(raised(refuse_all, with_cache("fp8")))
    assert "configuration: without words it asserts not config (" in refusal.asked
    assert refusal.change == "change the option that it reads"


def test_words_are_told_as_they_are() -> None:
    for error in (raised(refuse_with_words), ValueError("the words of a host")):
        assert assertion_of(error) is None
        assert of_error(error).asked.endswith("configuration: the words of a host")


def test_what_is_raised_without_a_statement_is_told_by_its_kind() -> None:
    error = raised(refuse_fp8, with_cache("auto"))
    assert assertion_of(error) is None
    assert words_of(error) == "AssertionError"


def test_words_of_any_length_are_one_short_line(monkeypatch, capsys):
    monkeypatch.setattr("sys.stdin", io.StringIO('{"count": 2000000}'))
    answer(lambda question: {"problem": "x\n" + "y" * question["count"]})
    (line,) = [one for one in capsys.readouterr().out.splitlines() if one.startswith(MARK)]
    problem = json.loads(line.removeprefix(MARK))["problem"]
    assert problem.startswith("x\ny")
    assert len(problem) < 10_000

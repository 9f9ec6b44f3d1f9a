# SPDX-License-Identifier: Apache-2.0
"""The registry of environment variables."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from mkv_ascend import envs

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("variable", envs.VARIABLES.values(), ids=lambda variable: variable.name)
def test_default_holds_when_unset_or_empty(variable: envs.Variable[object]) -> None:
    assert variable.get({}) == variable.get({variable.name: "  "})
    assert variable.get({variable.name: variable.default}) == variable.get({})
    assert not variable.is_set({variable.name: ""})
    assert variable.is_set({variable.name: variable.default})


@pytest.mark.parametrize("variable", envs.VARIABLES.values(), ids=lambda variable: variable.name)
def test_a_bad_value_names_variable_value_and_what_is_allowed(
    variable: envs.Variable[object],
) -> None:
    with pytest.raises(envs.EnvironmentVariableError) as caught:
        variable.get({variable.name: "-3 apples"})
    for part in (variable.name, "-3 apples", variable.allowed):
        assert part in str(caught.value)


@pytest.mark.parametrize(("text", "value"), [("1", True), ("YES", True), ("off", False)])
def test_switches_take_these_words_and_no_others(text: str, value: bool) -> None:
    assert envs.OPS_CHECKS.get({envs.OPS_CHECKS.name: text}) is value
    for other in ("2", "y es", "enabled"):
        with pytest.raises(envs.EnvironmentVariableError):
            envs.OPS_CHECKS.get({envs.OPS_CHECKS.name: other})


def test_a_relative_path_is_refused() -> None:
    with pytest.raises(envs.EnvironmentVariableError, match="absolute"):
        envs.CACHE.get({envs.CACHE.name: "cache"})
    assert envs.CACHE.get({envs.CACHE.name: "~/cache"}) == Path.home() / "cache"


def test_variables_are_read_when_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(envs.OPS_CHECKS.name, "1")
    assert envs.OPS_CHECKS.get()
    monkeypatch.setenv(envs.OPS_CHECKS.name, "0")
    assert not envs.OPS_CHECKS.get()


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("MKV_ASCEND_EMULATOR_DEVICES", "; set EMULATED_NPU_DEVICES instead"),
        ("MKV_ASCEND_OP", "did you mean MKV_ASCEND_OPS?"),
    ],
)
def test_former_and_unknown_variables_are_reported_with_todays(name: str, said: str) -> None:
    environment = {name: "2", "MKV_ASCEND_CACHE": "/c", "PATH": "/bin"}
    (message,) = envs.unknown_variables(environment)
    assert f"{name} is set" in message
    assert said in message


def test_the_module_prints_the_table_of_the_documentation() -> None:
    printed = subprocess.run(
        [sys.executable, "-m", "mkv_ascend.envs"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    page = (REPOSITORY / "docs" / "environment_variables.md").read_text()
    assert printed in page, "paste the output of `python -m mkv_ascend.envs`"
    for variable in envs.VARIABLES.values():
        assert f"`{variable.name}`" in printed


def test_no_other_module_reads_the_variables() -> None:
    """``os.environ`` with a literal ``MKV_ASCEND_*`` name belongs in envs.py alone."""
    offenders = []
    for path in (REPOSITORY / "mkv_ascend").rglob("*.py"):
        if path.name == "envs.py":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            reads = isinstance(node, ast.Subscript | ast.Call) and "environ" in ast.dump(node)
            if reads and any(
                isinstance(inner, ast.Constant)
                and isinstance(inner.value, str)
                and inner.value.startswith(envs.PREFIX)
                for inner in ast.walk(node)
            ):
                offenders.append(f"{path.relative_to(REPOSITORY)}:{node.lineno}")
    assert not offenders

# SPDX-License-Identifier: Apache-2.0
"""The environment variables of the emulated NPU."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulated_npu import variables
from emulated_npu.variables import Variable, VariableError

PAGE = Path(__file__).parents[3] / "docs" / "environment_variables.md"
EVERY = pytest.mark.parametrize(
    "variable", variables.VARIABLES.values(), ids=lambda variable: variable.name
)


@EVERY
def test_default_holds_when_unset_or_empty(variable: Variable[object]) -> None:
    assert variable.get({}) == variable.get({variable.name: "  "}) == variable.default
    # What a parent hands to a child process comes back as it was.
    assert variable.get({variable.name: variable.format(variable.default)}) == variable.default


@EVERY
def test_a_bad_value_names_variable_value_and_what_is_allowed(variable: Variable[object]) -> None:
    with pytest.raises(VariableError) as caught:
        variable.get({variable.name: "-3 apples"})
    for part in (variable.name, "-3 apples", variable.allowed):
        assert part in str(caught.value)


@pytest.mark.parametrize(("text", "value"), [("1", True), ("YES", True), ("off", False)])
def test_switches_take_words(text: str, value: bool) -> None:
    assert variables.STRICT.get({variables.STRICT.name: text}) is value


@pytest.mark.parametrize("text", ["0", "65", "1.5"])
def test_number_of_devices_has_limits(text: str) -> None:
    with pytest.raises(VariableError):
        variables.DEVICES.get({variables.DEVICES.name: text})


@pytest.mark.parametrize("text", ["", "0", "1.5GiB", "-1", "4 gibi", "GiB"])
def test_bytes_refuse_what_is_not_exact(text: str) -> None:
    with pytest.raises(ValueError, match="bytes"):
        variables.parse_bytes(text)


@given(st.integers(min_value=1, max_value=2**50))
def test_bytes_survive_formatting(value: int) -> None:
    assert variables.parse_bytes(variables.format_bytes(value)) == value


def test_variables_are_read_when_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variables.DEVICES.name, "3")
    assert variables.DEVICES.get() == 3
    monkeypatch.setenv(variables.DEVICES.name, "5")
    assert variables.DEVICES.get() == 5


def test_unknown_variables_are_reported_with_the_nearest_name() -> None:
    environment = {"EMULATED_NPU_DEVICE": "2", "EMULATED_NPU_MEMORY": "1GiB", "PATH": "/bin"}
    (message,) = variables.unknown_variables(environment)
    assert "EMULATED_NPU_DEVICE is set" in message
    assert "did you mean EMULATED_NPU_DEVICES?" in message


def test_the_documentation_holds_the_table() -> None:
    assert variables.markdown_table() in PAGE.read_text(encoding="utf-8"), "run `make generate`"

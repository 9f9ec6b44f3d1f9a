# SPDX-License-Identifier: Apache-2.0
"""Every environment variable of mkv_ascend: the one place that reads ``MKV_ASCEND_*``.

What a user configures belongs in ``--additional-config`` (see ``mkv_ascend.config``). Variables are
for what must be known before vLLM parses its arguments or outside vLLM: building, debugging. Each
is read when asked for, never at import::

    from mkv_ascend import envs

    envs.OPS_CHECKS.get()      # bool, or EnvironmentVariableError naming variable and value
    child = {envs.OPS_CHECKS.name: "1"}

``python -m mkv_ascend.envs`` prints the table of the documentation. Standard library only, because
``setup.py`` loads this module before anything else is installed.
"""

from __future__ import annotations

import difflib
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

PREFIX = "MKV_ASCEND_"
FORMER_EMULATOR_PREFIX = "MKV_ASCEND_EMULATOR_"
"""Variables of the emulated NPU began so before it became a distribution of its own."""

Value = TypeVar("Value")


class EnvironmentVariableError(ValueError):
    """A variable holds a value that it may not hold."""


@dataclass(frozen=True)
class Variable(Generic[Value]):
    """One environment variable: where its value comes from and what it may be.

    ``default`` is a text, as a user would give it. ``parse`` raises ValueError for a text that is
    not allowed.
    """

    name: str
    type_name: str
    default: str
    allowed: str
    help: str
    parse: Callable[[str], Value]

    def get(self, environment: Mapping[str, str] | None = None) -> Value:
        """The value in ``environment`` (default: of this process), or the default when unset.

        An empty text counts as unset. Raises EnvironmentVariableError for a bad value.
        """
        text = self._text(environment) or self.default
        try:
            return self.parse(text)
        except ValueError as error:
            raise EnvironmentVariableError(
                f"{self.name} is {text!r}; allowed: {self.allowed}. Change or unset {self.name}."
            ) from error

    def is_set(self, environment: Mapping[str, str] | None = None) -> bool:
        """Whether a value other than the empty text was given."""
        return bool(self._text(environment))

    def _text(self, environment: Mapping[str, str] | None) -> str:
        return (os.environ if environment is None else environment).get(self.name, "").strip()


_SWITCH_WORDS = {"1": True, "true": True, "yes": True, "on": True}
_SWITCH_WORDS |= {"0": False, "false": False, "no": False, "off": False}
_SWITCH_ALLOWED = "1, true, yes, on or 0, false, no, off"


def _parse_switch(text: str) -> bool:
    if text.lower() not in _SWITCH_WORDS:
        raise ValueError(text)
    return _SWITCH_WORDS[text.lower()]


def _parse_path(text: str) -> Path:
    path = Path(text).expanduser()
    if not path.is_absolute():
        # A relative path would mean another folder in each process of the engine.
        raise ValueError(text)
    return path


AUTO = "auto"


def _parse_folder(text: str) -> Path | None:
    return None if text == AUTO else _parse_path(text)


OPS_REFERENCE, OPS_NATIVE, OPS_ASCENDC_HOST = "reference", "native", "ascendc_host"


def _parse_ops(text: str) -> str:
    if text not in (OPS_REFERENCE, OPS_NATIVE, OPS_ASCENDC_HOST):
        raise ValueError(text)
    return text


BUILD_OPS = Variable(
    "MKV_ASCEND_BUILD_OPS",
    "switch",
    "1",
    _SWITCH_ALLOWED,
    "Build the native parts when the package is installed. Off: Python only, for tools and docs.",
    _parse_switch,
)
CACHE = Variable(
    "MKV_ASCEND_CACHE",
    "path",
    "~/.cache/mkv_ascend",
    "an absolute path (a leading ~ is the home folder)",
    "Folder for what is made once and kept: tiny trained models, built stand-ins.",
    _parse_path,
)
METRICS = Variable(
    "MKV_ASCEND_METRICS",
    "path",
    AUTO,
    f"{AUTO}, or an absolute path of a folder that exists",
    "Folder in which workers leave their counts for `/metrics`. By default the server makes "
    "one, names it here to its workers, and removes it when it ends. Unused where vLLM has a "
    "folder for this itself (`PROMETHEUS_MULTIPROC_DIR`).",
    _parse_folder,
)
OPS = Variable(
    "MKV_ASCEND_OPS",
    "word",
    OPS_NATIVE,
    f"{OPS_REFERENCE}, {OPS_NATIVE} or {OPS_ASCENDC_HOST}",
    "How custom ops run: as plain torch operations, by native kernels, or, on the CPU and the "
    "emulated NPU, by the AscendC kernels under a checker. Unset: native where they are built, "
    "else the reference, with a warning.",
    _parse_ops,
)
OPS_CHECKS = Variable(
    "MKV_ASCEND_OPS_CHECKS",
    "switch",
    "0",
    _SWITCH_ALLOWED,
    "Check the values in the arguments of custom ops before each call on the CPU or the emulated "
    "NPU: block ids, positions, slots, addresses.",
    _parse_switch,
)
VARIABLES: dict[str, Variable[Any]] = {
    variable.name: variable for variable in (BUILD_OPS, CACHE, METRICS, OPS, OPS_CHECKS)
}
"""All variables by name, in the order of the documentation."""


def unknown_variables(environment: Mapping[str, str] | None = None) -> list[str]:
    """One message for each ``MKV_ASCEND_*`` variable that is set but does not exist."""
    messages = []
    for name in sorted(os.environ if environment is None else environment):
        if not name.startswith(PREFIX) or name in VARIABLES:
            continue
        near = difflib.get_close_matches(name, VARIABLES, n=1)
        hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(VARIABLES)}"
        if name.startswith(FORMER_EMULATOR_PREFIX):
            hint = f"set EMULATED_NPU_{name.removeprefix(FORMER_EMULATOR_PREFIX)} instead"
        messages.append(f"{name} is set, but mkv_ascend has no such variable; {hint}")
    return messages


def markdown_table() -> str:
    """The table of docs/environment_variables.md."""
    lines = [
        "| variable | type | default | allowed | what it does |",
        "| --- | --- | --- | --- | --- |",
    ]
    for variable in VARIABLES.values():
        lines.append(
            f"| `{variable.name}` | {variable.type_name} | `{variable.default}` | "
            f"{variable.allowed} | {variable.help} |"
        )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(markdown_table())

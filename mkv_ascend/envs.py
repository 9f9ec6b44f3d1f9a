# SPDX-License-Identifier: Apache-2.0
"""Every environment variable of mkv_ascend: the one place that reads ``MKV_ASCEND_*``.

What a user configures belongs in ``--additional-config`` (see ``mkv_ascend.config``). Variables are
for what must be known before vLLM parses its arguments or outside vLLM: building, debugging. Each
is read when asked for, never at import::

    from mkv_ascend import envs

    envs.OPS_CHECKS.get()      # bool, or EnvironmentVariableError naming variable and value
    child = {envs.OPS_CHECKS.name: envs.OPS_CHECKS.format(True)}

``python -m mkv_ascend.envs`` prints the table of the documentation. Standard library only, because
``setup.py`` loads this module before anything else is installed.
"""

from __future__ import annotations

import difflib
import os
import re
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

    ``parse`` raises ValueError for a text that is not allowed; ``format`` is its inverse, for
    handing a value to a child process.
    """

    name: str
    type_name: str
    default: Value
    allowed: str
    help: str
    parse: Callable[[str], Value]
    format: Callable[[Value], str]

    def get(self, environment: Mapping[str, str] | None = None) -> Value:
        """The value in ``environment`` (default: of this process), or the default when unset.

        An empty text counts as unset. Raises EnvironmentVariableError for a bad value.
        """
        text = (os.environ if environment is None else environment).get(self.name, "").strip()
        if not text:
            # Through parse as well, so that the ~ of a default path is expanded when asked for.
            return self.parse(self.format(self.default))
        try:
            return self.parse(text)
        except ValueError as error:
            raise EnvironmentVariableError(
                f"{self.name} is {text!r}; allowed: {self.allowed}. Change or unset {self.name}."
            ) from error

    def is_set(self, environment: Mapping[str, str] | None = None) -> bool:
        """Whether a value other than the empty text was given."""
        return bool((os.environ if environment is None else environment).get(self.name, "").strip())


VARIABLES: dict[str, Variable[Any]] = {}
"""All variables by name, in the order of the documentation."""


def _register(variable: Variable[Value]) -> Variable[Value]:
    if not variable.name.startswith(PREFIX) or variable.name in VARIABLES:
        raise ValueError(f"{variable.name} must be new and start with {PREFIX}")
    VARIABLES[variable.name] = variable
    return variable


_TRUE_WORDS = ("1", "true", "yes", "on")
_FALSE_WORDS = ("0", "false", "no", "off")


def _parse_switch(text: str) -> bool:
    word = text.lower()
    if word in _TRUE_WORDS:
        return True
    if word in _FALSE_WORDS:
        return False
    raise ValueError(text)


def _switch(name: str, default: bool, help: str) -> Variable[bool]:
    return _register(
        Variable(
            name=PREFIX + name,
            type_name="switch",
            default=default,
            allowed=f"{', '.join(_TRUE_WORDS)} or {', '.join(_FALSE_WORDS)}",
            help=help,
            parse=_parse_switch,
            format=lambda value: "1" if value else "0",
        )
    )


def _choice(name: str, default: str, words: tuple[str, ...], help: str) -> Variable[str]:
    def parse(text: str) -> str:
        if text not in words:
            raise ValueError(text)
        return text

    return _register(
        Variable(
            name=PREFIX + name,
            type_name="word",
            default=default,
            allowed=", ".join(words[:-1]) + f" or {words[-1]}",
            help=help,
            parse=parse,
            format=str,
        )
    )


_BYTE_UNITS = {
    "": 1,
    "B": 1,
    "KIB": 2**10,
    "MIB": 2**20,
    "GIB": 2**30,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
}


def parse_bytes(text: str) -> int:
    """Number of bytes of ``"4GiB"``, ``"512 MiB"`` or ``"1048576"``; ValueError otherwise.

    The result is at least 1 and exact: a fraction such as ``"1.5GiB"`` is refused.
    """
    match = re.fullmatch(r"([0-9]+)\s*([A-Za-z]*)", text.strip())
    if match is None or match.group(2).upper() not in _BYTE_UNITS or int(match.group(1)) == 0:
        raise ValueError(
            f"{text!r} is not a number of bytes; allowed: a whole number over 0 with an optional "
            "unit B, KiB, MiB, GiB, KB, MB or GB"
        )
    return int(match.group(1)) * _BYTE_UNITS[match.group(2).upper()]


def _parse_path(text: str) -> Path:
    path = Path(text).expanduser()
    if not path.is_absolute():
        # A relative path would mean another folder in each process of the engine.
        raise ValueError(text)
    return path


def _path(name: str, default: Path, help: str) -> Variable[Path]:
    return _register(
        Variable(
            name=PREFIX + name,
            type_name="path",
            default=default,
            allowed="an absolute path (a leading ~ is the home folder)",
            help=help,
            parse=_parse_path,
            format=str,
        )
    )


BUILD_OPS = _switch(
    "BUILD_OPS",
    True,
    "Build the native parts when the package is installed. Off: Python only, for tools and docs.",
)
CACHE = _path(
    "CACHE",
    Path("~/.cache/mkv_ascend"),
    "Folder for what is made once and kept: tiny trained models, built stand-ins.",
)
OPS_REFERENCE, OPS_NATIVE, OPS_ASCENDC_HOST = "reference", "native", "ascendc_host"
OPS = _choice(
    "OPS",
    OPS_NATIVE,
    (OPS_REFERENCE, OPS_NATIVE, OPS_ASCENDC_HOST),
    "How custom ops run: as plain torch operations, by native kernels, or, on the CPU and the "
    "emulated NPU, by the AscendC kernels under a checker. Unset: native where they are built, "
    "else the reference, with a warning.",
)
OPS_CHECKS = _switch(
    "OPS_CHECKS",
    False,
    "Check the values in the arguments of custom ops before each call on the CPU or the emulated "
    "NPU: block ids, positions, slots, addresses.",
)


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
        default = variable.format(variable.default)
        lines.append(
            f"| `{variable.name}` | {variable.type_name} | `{default}` | {variable.allowed} | "
            f"{variable.help} |"
        )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(markdown_table())

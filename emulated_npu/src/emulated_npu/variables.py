# SPDX-License-Identifier: Apache-2.0
"""Every environment variable of the emulated NPU: the one place that reads ``EMULATED_NPU_*``.

Each is read when asked for, never at import::

    variables.DEVICES.get()      # int, or VariableError naming variable and value
    child = {variables.DEVICES.name: variables.DEVICES.format(2)}

``python -m emulated_npu.variables`` prints the table of the documentation. Standard library only:
the launcher reads them before anything else is imported.
"""

from __future__ import annotations

import difflib
import os
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

PREFIX = "EMULATED_NPU_"

Value = TypeVar("Value")


class VariableError(ValueError):
    """A variable holds a value that it may not hold."""


@dataclass(frozen=True)
class Variable(Generic[Value]):
    """One environment variable: its default, and what it may be.

    ``parse`` raises ValueError for a text that is not allowed; ``format`` is its inverse, for
    handing a value to a child process.
    """

    name: str
    default: Value
    allowed: str
    help: str
    parse: Callable[[str], Value]
    format: Callable[[Value], str]

    def get(self, environment: Mapping[str, str] | None = None) -> Value:
        """The value in ``environment`` (default: of this process), or the default when unset.

        An empty text counts as unset. Raises VariableError for a bad value.
        """
        text = (os.environ if environment is None else environment).get(self.name, "").strip()
        if not text:
            return self.default
        try:
            return self.parse(text)
        except ValueError as error:
            raise VariableError(
                f"{self.name} is {text!r}; allowed: {self.allowed}. Change or unset {self.name}."
            ) from error


VARIABLES: dict[str, Variable[Any]] = {}
"""All variables by name, in the order of the documentation."""


def _register(variable: Variable[Value]) -> Variable[Value]:
    VARIABLES[variable.name] = variable
    return variable


_TRUE_WORDS = ("1", "true", "yes", "on")
_FALSE_WORDS = ("0", "false", "no", "off")


def _parse_switch(text: str) -> bool:
    word = text.lower()
    if word not in _TRUE_WORDS + _FALSE_WORDS:
        raise ValueError(text)
    return word in _TRUE_WORDS


def _switch(name: str, default: bool, help: str) -> Variable[bool]:
    allowed = f"{', '.join(_TRUE_WORDS)} or {', '.join(_FALSE_WORDS)}"
    return _register(
        Variable(
            PREFIX + name, default, allowed, help, _parse_switch, lambda value: str(int(value))
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
        raise ValueError(f"{text!r} is not a number of bytes; allowed: {BYTES_ALLOWED}")
    return int(match.group(1)) * _BYTE_UNITS[match.group(2).upper()]


def format_bytes(value: int) -> str:
    """The shortest exact text that ``parse_bytes`` reads back, in binary units."""
    for unit in ("GiB", "MiB", "KiB"):
        if value % _BYTE_UNITS[unit.upper()] == 0:
            return f"{value // _BYTE_UNITS[unit.upper()]}{unit}"
    return str(value)


BYTES_ALLOWED = "a whole number over 0 with an optional unit B, KiB, MiB, GiB, KB, MB or GB"
MOST_DEVICES = 64


def _parse_devices(text: str) -> int:
    value = int(text)
    if not 1 <= value <= MOST_DEVICES:
        raise ValueError(text)
    return value


def _parse_path(text: str) -> str:
    # A relative one would be another file in each process that changes its folder.
    if not os.path.isabs(text):
        raise ValueError(text)
    return text


BUILD = _switch(
    "BUILD",
    True,
    "Build the device when the package is installed. Off: Python only, for wheels and tools.",
)
DEVICES = _register(
    Variable(
        PREFIX + "DEVICES",
        8,
        f"a whole number from 1 to {MOST_DEVICES}",
        "Number of emulated NPUs that one process sees.",
        _parse_devices,
        str,
    )
)
MEMORY = _register(
    Variable(
        PREFIX + "MEMORY",
        4 * 2**30,
        BYTES_ALLOWED,
        "Memory of each emulated NPU. Beyond it an allocation fails with an out-of-memory error.",
        parse_bytes,
        format_bytes,
    )
)
STRICT = _switch(
    "STRICT",
    False,
    "Refuse what the operators' documentation does not allow: dtypes, shapes, alignments, devices.",
)
FLOAT32_COMPUTE = _switch(
    "FLOAT32_COMPUTE",
    False,
    "The one relaxation of strict mode: accept float32 where float16 and bfloat16 are documented, "
    "to compare tokens with a float32 reference.",
)
TRITON = _switch(
    "TRITON",
    False,
    "Whether vllm-ascend finds Triton (run by its interpreter), or takes its ways without Triton.",
)
COUNTERS = _switch(
    "COUNTERS",
    False,
    "Print the counters at exit: operator launches, host reads, copies, peak memory.",
)
FA3 = _switch(
    "FA3",
    True,
    "Offer a stand-in for the flash_attn_npu_v3 library, so that flash_attention_3 can be chosen.",
)

FAULTS = _register(
    Variable(
        PREFIX + "FAULTS",
        "",
        "an absolute path",
        "File that asks for faults at chosen launches of operators. It may be written later.",
        _parse_path,
        str,
    )
)

CHANCE, NAN, ZERO, UNDEFINED = "chance", "nan", "zero", "undefined"


def _parse_unwritten(text: str) -> str:
    if text not in (CHANCE, NAN, ZERO, UNDEFINED):
        raise ValueError(text)
    return text


UNWRITTEN = _register(
    Variable(
        PREFIX + "UNWRITTEN",
        CHANCE,
        f"{CHANCE}, {NAN}, {ZERO} or {UNDEFINED}",
        "What memory holds before anything is written to it: whatever the host left there, NaN "
        "(and -1), or zeros. With undefined it is NaN, and so are rows that operators leave "
        "undefined; else these are zeros.",
        _parse_unwritten,
        str,
    )
)


def unknown_variables(environment: Mapping[str, str] | None = None) -> list[str]:
    """One message for each ``EMULATED_NPU_*`` variable that is set but does not exist."""
    messages = []
    for name in sorted(os.environ if environment is None else environment):
        if not name.startswith(PREFIX) or name in VARIABLES:
            continue
        near = difflib.get_close_matches(name, VARIABLES, n=1)
        hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(VARIABLES)}"
        messages.append(f"{name} is set, but the emulated NPU has no such variable; {hint}")
    return messages


def markdown_table() -> str:
    """The table of the variables, as Markdown."""
    lines = ["| variable | default | allowed | what it does |", "| --- | --- | --- | --- |"]
    for variable in VARIABLES.values():
        default = variable.format(variable.default)
        lines.append(f"| `{variable.name}` | `{default}` | {variable.allowed} | {variable.help} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(markdown_table())

# SPDX-License-Identifier: Apache-2.0
"""Whether a function reads an argument, found in its bytecode without a call."""

from __future__ import annotations

import dis
import inspect
from collections.abc import Callable
from typing import Any

JUMPS = frozenset((*dis.hasjrel, *dis.hasjabs))
ENDS = ("JUMP_FORWARD", "JUMP_BACKWARD", "JUMP_ABSOLUTE", "RETURN", "RAISE", "RERAISE")
"""Beginnings of the names of instructions behind which the next one does not follow."""


def reads_argument(function: Callable[..., Any], name: str) -> bool:
    """Whether some path through ``function`` reads its argument ``name`` before it is replaced.

    False also where there is no such argument.
    """
    function = inspect.unwrap(function)
    instructions = list(dis.get_instructions(function))
    at = {instruction.offset: index for index, instruction in enumerate(instructions)}
    starts, seen = [0], set[int]()
    while starts:
        index = starts.pop()
        while index < len(instructions) and index not in seen:
            seen.add(index)
            instruction = instructions[index]
            if instruction.argval == name and _is_of_a_variable(instruction):
                if instruction.opname.startswith("LOAD"):
                    return True
                break
            if instruction.opcode in JUMPS:
                starts.append(at[instruction.argval])
            if instruction.opname.startswith(ENDS):
                break
            index += 1
    return False


def _is_of_a_variable(instruction: dis.Instruction) -> bool:
    return any(kind in instruction.opname for kind in ("_FAST", "_DEREF", "_CLOSURE"))

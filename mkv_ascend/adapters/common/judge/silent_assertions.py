# SPDX-License-Identifier: Apache-2.0
"""What assertions without words refuse: the statement itself, and the options that it reads."""

from __future__ import annotations

import ast
import functools
import inspect
import linecache
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

MOST_SHOWN = 200
"""Characters of a statement that a message repeats."""


@dataclass(frozen=True)
class SilentAssertion:
    """``asserted``: source that does not hold, where ``conditions`` do; ``place``: file and line.

    ``options``: those of ``vllm serve`` whose values it or the conditions read.
    """

    asserted: str
    conditions: tuple[str, ...]
    place: str
    options: tuple[str, ...]

    @property
    def words(self) -> str:
        """All of it, to be read behind "this configuration: "."""
        where = "".join(f", where {condition}" for condition in self.conditions)
        return f"without words it asserts {self.asserted}{where} ({self.place})"


def assertion_of(error: BaseException) -> SilentAssertion | None:
    """An assertion without words that was raised, by itself or inside pydantic's error."""
    for one in (error, *_inside(error)):
        if isinstance(one, AssertionError) and not str(one).strip():
            frames = traceback.extract_tb(one.__traceback__)
            return _read(frames[-1]) if frames else None
    return None


def _inside(error: BaseException) -> Iterator[BaseException]:
    """What pydantic has caught: its own text is empty where theirs is."""
    for problem in error.errors() if hasattr(error, "errors") else ():
        found = problem.get("ctx", {}).get("error")
        if isinstance(found, BaseException):
            yield found


def _read(frame: traceback.FrameSummary) -> SilentAssertion | None:
    line = frame.lineno or 0
    try:
        tree = ast.parse("".join(linecache.getlines(frame.filename)))
    except SyntaxError:
        return None
    around = [node for node in ast.walk(tree) if _covers(node, line)]
    asserted = next((node.test for node in around if isinstance(node, ast.Assert)), None)
    if asserted is None:
        return None
    # What stands in ``else`` is left out: its condition would have to be turned round.
    conditions = [
        node.test
        for node in around
        if isinstance(node, ast.If) and any(_covers(inner, line) for inner in node.body)
    ]
    options = dict.fromkeys(name for node in (*conditions, asserted) for name in _options_in(node))
    return SilentAssertion(
        _shown(asserted),
        tuple(map(_shown, conditions)),
        f"{Path(frame.filename).name}:{line}",
        tuple(options),
    )


def _covers(node: ast.AST, line: int) -> bool:
    last = getattr(node, "end_lineno", None)
    return last is not None and getattr(node, "lineno", 0) <= line <= last


def _shown(node: ast.expr) -> str:
    text = ast.unparse(node)
    return text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}..."


def _options_in(node: ast.AST) -> Iterator[str]:
    """Options of the fields that an expression reads, such as ``cache_config.cache_dtype``."""
    for read in ast.walk(node):
        if isinstance(read, ast.Attribute):
            owner = getattr(read.value, "attr", getattr(read.value, "id", ""))
            option = _options_by_field().get((str(owner).replace("_", ""), read.attr))
            if option is not None:
                yield option


@functools.cache
def _options_by_field() -> dict[tuple[str, str], str]:
    """("cacheconfig", "cache_dtype") -> its option: vLLM's arguments take defaults from fields."""
    from vllm.engine.arg_utils import EngineArgs

    found = {}
    for node in ast.walk(ast.parse(inspect.getsource(EngineArgs))):
        if not isinstance(node, ast.AnnAssign) or not isinstance(node.target, ast.Name):
            continue
        field = node.value
        if isinstance(field, ast.Attribute) and isinstance(field.value, ast.Name):
            option = f"--{node.target.id.replace('_', '-')}"
            found[field.value.id.lower(), field.attr] = option
    return found

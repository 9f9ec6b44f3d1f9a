# SPDX-License-Identifier: Apache-2.0
"""What vLLM and vllm-ascend refuse, in one message, and what fails while models are built.

vLLM's command asks the platform to prepare before it reads its arguments; there
``EngineArgs.create_engine_config`` is wrapped. What rules of ours refuse ends in the same way. Of
assertions without words the statement itself is told, and the options that it reads.
"""

from __future__ import annotations

import ast
import functools
import inspect
import linecache
import os
import traceback
from collections.abc import Iterator
from importlib.metadata import version
from typing import Any, NoReturn

from mkv_ascend.adapters.patching import patch
from mkv_ascend.adapters.refusal import StartUpRefused, is_vllm_command
from mkv_ascend.attention.selection import SelectionError
from mkv_ascend.layout.component import LayoutError
from mkv_ascend.layout.grouping import GroupingError
from mkv_ascend.rules.backends import of_selection
from mkv_ascend.rules.kv_cache import ConnectorError
from mkv_ascend.rules.refusal import Refusal, RefusedError

REFUSALS = (ValueError, AssertionError, OSError, RuntimeError, ImportError)
"""What vLLM and vllm-ascend raise where they do not serve what is asked for: vllm-ascend's options
for some models are refused by a RuntimeError (NotImplementedError is one), and what is not
installed by an ImportError. Others are faults, whose traceback is of use."""
MOST_SHOWN = 200
"""Characters of a statement that a message repeats."""
NO_SHAPE = "negative dimension"
"""What torch says of a tensor that has a dimension below 0."""


@patch(
    name="refusals before the start",
    target="vllm.engine.arg_utils:EngineArgs.create_engine_config",
)
def say_refusals_alone(original: Any, arguments: Any, *args: Any, **kwargs: Any) -> Any:
    """``EngineArgs.create_engine_config``; in vLLM's own command an error is one message."""
    if not is_vllm_command():
        return original(arguments, *args, **kwargs)
    try:
        return original(arguments, *args, **kwargs)
    except REFUSALS as error:
        _say_what_vllm_says(error)


def words_of(error: BaseException) -> str:
    """What a host says, in its own words without what pydantic and lists of classes add."""
    # pydantic's text repeats all of its input; each of its errors has a message.
    listed = error.errors() if hasattr(error, "errors") else ()
    words = "; ".join(filter(None, map(_problem, listed)))
    if not words:
        plain = not listed and isinstance(error, REFUSALS) and str(error).strip()
        words = str(error) if plain else f"{type(error).__name__}: {error}".rstrip(": ")
    # 300 names of classes.
    words, _, _ = words.partition(" Supported architectures:")
    return words.strip().rstrip(".")


def _problem(found: Any) -> str:
    words = str(found["msg"]).removeprefix("Value error, ").removeprefix("Assertion failed, ")
    place = ".".join(str(part) for part in found.get("loc", ()))
    return f"{place}: {words}" if place else words


def of_host(
    words: str,
    possible: str = "what they say above",
    change: str = "correct what they name",
) -> Refusal:
    """What a host refuses, as a refusal."""
    return Refusal(
        "host",
        f"vLLM {version('vllm')} or vllm-ascend {version('vllm-ascend')} refuses this "
        f"configuration: {words}",
        possible,
        change,
    )


def of_error(error: BaseException) -> Refusal:
    """What a host raises as a refusal: in its words, or in ours around an assertion without any."""
    found = assertion_of(error)
    if found is None:
        return of_host(words_of(error))
    words, options = found
    read = " and ".join(options)
    if not read:
        return of_host(words, "what makes it hold", "change the option that it reads")
    possible, change = f"values of {read} that make it hold", f"change {read}, or leave it out"
    return of_host(f"{read}: {words}", possible, change)


def _say_what_vllm_says(error: Exception) -> NoReturn:
    """End with vLLM's own words; with VLLM_LOGGING_LEVEL=DEBUG the error is raised as it is."""
    if os.environ.get("VLLM_LOGGING_LEVEL", "").upper() == "DEBUG":
        raise error
    said = of_error(error).asked
    raise StartUpRefused(f"{said}. VLLM_LOGGING_LEVEL=DEBUG shows where") from None


def assertion_of(error: BaseException) -> tuple[str, tuple[str, ...]] | None:
    """Of an assertion without words, by itself or inside pydantic's error: words, and options.

    The words are to be read behind "this configuration: ". The options are those of ``vllm serve``
    whose values it, or a condition around it, reads.
    """
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


def _read(frame: traceback.FrameSummary) -> tuple[str, tuple[str, ...]] | None:
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
    where = "".join(f", where {_shown(condition)}" for condition in conditions)
    place = f"{os.path.basename(frame.filename)}:{line}"
    return f"without words it asserts {_shown(asserted)}{where} ({place})", tuple(options)


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


class BuildError(RuntimeError):
    """Why the models cannot be built; ``refusals``: none where only memory is lacking here."""

    def __init__(self, words: str, refusals: tuple[Refusal, ...] = ()) -> None:
        super().__init__(words)
        self.refusals = refusals


def failed(error: BaseException) -> BuildError:
    """The words of an error, and as which refusals it is told."""
    traceback.print_exception(error)  # For a developer: commands show the answer alone.
    frames = traceback.extract_tb(error.__traceback__)
    # The statement of the model, not one of torch that makes any tensor.
    named = next((one for one in reversed(frames) if _is_host(one) or _is_ours(one)), frames[-1])
    words = f"{words_of(error)} ({os.path.basename(named.filename)}:{named.lineno})"
    return BuildError(words, _refusals(error, frames[-1], words))


def _is_host(frame: traceback.FrameSummary) -> bool:
    return any(f"/{package}/" in frame.filename for package in ("vllm", "vllm_ascend"))


def _is_ours(frame: traceback.FrameSummary) -> bool:
    return "/mkv_ascend/" in frame.filename


def _refusals(
    error: BaseException, place: traceback.FrameSummary, words: str
) -> tuple[Refusal, ...]:
    """What an engine would refuse, too; none for what fails because nothing has memory here."""
    if isinstance(error, RefusedError):
        return error.refusals
    if isinstance(error, SelectionError):
        return (of_selection(error),)
    if isinstance(error, LayoutError | GroupingError):
        return (of_layout(error),)
    # What layers of ours refuse, in one sentence each.
    is_ours = _is_ours(place) and isinstance(error, NotImplementedError)
    if is_ours or isinstance(error, ConnectorError):
        code = "kv-connector" if isinstance(error, ConnectorError) else "backend"
        asked, _, possible = str(error).partition(". Possible: ")
        possible = possible or "what docs/compatibility.md lists"
        return (Refusal(code, asked, possible, "choose one of these"),)
    statement = linecache.getline(place.filename, place.lineno or 0).strip()
    if _is_host(place) and isinstance(error, ValueError) and statement.startswith("raise"):
        return (of_host(words_of(error)),)
    # Sizes alone can be why: shapes are what they would be with memory.
    no_shape = isinstance(error, RuntimeError) and NO_SHAPE in str(error)
    if (no_shape or isinstance(error, ZeroDivisionError)) and not _is_ours(place):
        possible, change = "sizes of which models can be built", "correct those in config.json"
        return (of_host(words, possible, f"{change}, or what --hf-overrides says"),)
    return ()


def of_layout(error: LayoutError | GroupingError) -> Refusal:
    """That nothing can be planned with the options of layout."""
    possible, change = "docs/configuration.md, layout", "change the options of layout"
    return Refusal("layout", str(error), possible, change)

# SPDX-License-Identifier: Apache-2.0
"""The options of ``vllm serve`` as vLLM's own parser has them: writes ``serve_options_*.json``.

``mkv-ascend emulate -- python tools/serve_options.py`` does it for the installed release.
"""

from __future__ import annotations

import argparse
import dataclasses
import inspect
import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from mkv_ascend.adapters.host_probe import vllm_parser
from mkv_ascend.adapters.installed import rules
from mkv_ascend.commands.serve_arguments import FIRST_RELEASE, options_file, options_of

__all__ = ["described_options", "text_of", "vllm_parser"]

PROBES: tuple[tuple[str, str, Callable[[Any], bool]], ...] = (
    ("number or auto", "auto", lambda value: value == -1),
    ("number", "1k", lambda value: value == 1000 and type(value) is int),
    ("json or word", '{"a": 1}', lambda value: value == {"a": 1}),
    ("int", "7", lambda value: type(value) is int),
    ("float", "1.5", lambda value: type(value) is float),
)
"""Form, a value, and what a type of that form makes of it; the first that fits."""


def described_options(parser: argparse.ArgumentParser) -> list[dict[str, Any]]:
    """What ``serve_arguments`` has to know of each option."""
    return [
        _described(action)
        for action in parser._actions
        if action.option_strings and not isinstance(action, argparse._HelpAction)
    ]


def _described(action: argparse.Action) -> dict[str, Any]:
    option: dict[str, Any] = {"name": action.dest, "spellings": list(action.option_strings)}
    if isinstance(action, argparse.BooleanOptionalAction):
        return {**option, "form": "on or off"}
    if action.nargs == 0:
        return {**option, "form": "switch"}
    option["form"] = _form(action.type)
    if option["form"] == "word" and isinstance(_result(action.type, "{}"), dict):
        option["form"] = "object"
    is_class = action.dest.endswith("_config") and isinstance(
        _result(action.type, "a b"), Exception
    )
    if option["form"] == "word" and is_class:
        # A class of vLLM that refuses objects without its fields.
        option["form"] = "object"
    if (described := _class_of(action)) is not None:
        option["fields"] = sorted(field.name for field in dataclasses.fields(described))
    if action.dest == "speculative_config" and takes_dashes_in_drafts():
        option["dashes"] = True
    if _result(action.type, "None") is None:
        option["optional"] = True
    if action.nargs is not None:
        option["nargs"] = action.nargs
    if action.choices is not None and option["form"] == "word":
        option["choices"] = [str(choice) for choice in action.choices]
    elif action.choices is not None:
        option["choices"] = list(action.choices)
    return option


def _class_of(action: argparse.Action) -> Any:
    """The dataclass of vLLM that an object of this option becomes; None if it is none."""
    if action.dest == "speculative_config":
        # Read as any object, and made one when the engine is configured.
        from vllm.config import SpeculativeConfig

        return SpeculativeConfig
    read = action.type
    if inspect.isfunction(read):
        # An option that may be None reads all else by another function.
        read = inspect.getclosurevars(read).nonlocals.get("return_type", read)
    parameters = inspect.signature(read).parameters if inspect.isfunction(read) else {}
    return parameters["cls"].default if "cls" in parameters else None


def takes_dashes_in_drafts() -> bool:
    """Whether a field of ``--speculative-config`` may be written with dashes."""
    from vllm.engine.arg_utils import EngineArgs

    asked: Any = EngineArgs(model="m", speculative_config={"no-field": 1})
    refused = _raised(lambda: asked.create_speculative_config(None, None))
    return "no_field" in str(refused)


def _raised(call: Callable[[], Any]) -> Exception | None:
    try:
        call()
    except Exception as error:
        return error
    return None


def _form(read: Any) -> str:
    """The form of the values that a type of argparse reads."""
    if read is None:
        return "word"
    if read.__qualname__.endswith("parse_dataclass"):
        return "object"
    for form, text, fits in PROBES:
        if not fits(_result(read, text)):
            continue
        # Both read an object; only one takes a word as it is.
        return "json" if form == "json or word" and _result(read, "a b") != "a b" else form
    return "word"


def _result(read: Any, text: str) -> Any:
    """What ``read`` makes of ``text``; the exception where it refuses."""
    try:
        return text if read is None else read(text)
    except Exception as error:  # A type may raise what it likes.
        return error


def text_of(options: Iterable[dict[str, Any]], release: str) -> str:
    """The file of a release: one option a line; of a later one those that differ."""
    if release != FIRST_RELEASE:
        options = _differing([*options])
    return "[\n" + ",\n".join(json.dumps(option) for option in options) + "\n]\n"


def _differing(options: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Options that are not as in the first release, and the names of those that are gone."""
    first, names = options_of(FIRST_RELEASE), {option["name"] for option in options}
    gone = [{"name": option["name"]} for option in first if option["name"] not in names]
    return [*(option for option in options if option not in first), *gone]


if __name__ == "__main__":
    release = rules().vllm
    text = text_of(described_options(vllm_parser()), release)
    options_file(release).write_text(text, encoding="utf-8")

# SPDX-License-Identifier: Apache-2.0
"""Reading the arguments of ``vllm serve`` without vLLM, whose import alone takes 12 s.

``serve_options_0.23.json`` lists the options of the first release of vLLM: spellings, name, form of
the value, and fields of an object. Its like of a later one lists those that differ, and the names
of those that are gone. ``tools/serve_options.py`` writes them from vLLM's own parser, and
tests/emulated/platform/test_serve_arguments.py compares both on the same commands.
"""

from __future__ import annotations

import argparse
import difflib
import functools
import json
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from mkv_ascend.commands.argument_types import json_object, json_value

BARE_NUMBER = re.compile(r"\b\d+(?:\.\d+)?[kKmMgGtT]\b")
QUOTED = re.compile(r'("(?:[^"\\]|\\.)*")')

FIRST_RELEASE = "0.23"
"""All of its options are in its file."""
MULTIPLIERS = {
    **{letter: 1000 ** (place + 1) for place, letter in enumerate("kmgt")},
    **{letter: 1024 ** (place + 1) for place, letter in enumerate("KMGT")},
}
"""vLLM's endings of numbers: small letters decimal, capital ones binary."""
MOST_BYTES = 1 << 20
"""Of a file of options; they have some hundreds."""
MOST_SHOWN = 60
"""Characters of a name that a message repeats."""


class CommandError(ValueError):
    """A command that cannot be read."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise CommandError(message)


def options_file(release: str) -> Path:
    """The file of the options of a release of vLLM, such as 0.23."""
    return Path(__file__).with_name(f"serve_options_{release}.json")


def options_of(release: str) -> list[dict[str, Any]]:
    """The options of a release of vLLM, such as 0.23."""
    options = {option["name"]: option for option in _read(FIRST_RELEASE)}
    if release == FIRST_RELEASE:
        return [*options.values()]
    options |= {option["name"]: option for option in _read(release)}
    return [option for option in options.values() if "form" in option]


def _read(release: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(options_file(release).read_text(encoding="utf-8"))
    return found


def read_command(words: Sequence[str], release: str) -> dict[str, Any]:
    """The options that a command gives, by their names in vLLM; ``model`` among them.

    Args:
        words: ``vllm serve MODEL ...`` as a shell hands it over.
        release: of vLLM (``HostRules.vllm``).

    Raises:
        CommandError: it is another command, an option is unknown, or a value has another form.
    """
    rest = _behind_serve(list(words))
    rest = _model_first(rest)
    rest = _with_config_file(rest)
    given = vars(_parser(release).parse_args(_with_nested(_plain_spelling(rest))))
    model = given.pop("model_tag", None)
    if model is not None:
        given["model"] = model
    if "model" not in given:
        raise CommandError("no model is given: write vllm serve MODEL, MODEL being a directory")
    return given


def _behind_serve(words: list[str]) -> list[str]:
    program = Path(words[0]).name if words else ""
    if program == "vllm" and words[1:2] == ["serve"]:
        return words[2:]
    if program == "serve":
        return words[1:]
    raise CommandError(
        f"{' '.join(words[:2]) or 'nothing'} is not a command that can be checked: write "
        "vllm serve MODEL and its options behind --"
    )


def _model_first(words: list[str]) -> list[str]:
    """``--model M`` counts as the model's place in front, as in vLLM."""
    for index, word in enumerate(words):
        if word == "--model" and index + 1 < len(words):
            return [words[index + 1], *words[:index], *words[index + 2 :]]
        if word.startswith("--model="):
            model = word.removeprefix("--model=")
            return [model, *words[:index], *words[index + 1 :]]
    return words


def _with_config_file(words: list[str]) -> list[str]:
    """The options of ``--config FILE`` in front of the others, so that those win."""
    if "--config" not in words:
        return words
    index = words.index("--config")
    if index + 1 >= len(words):
        raise CommandError("--config names no file")
    added = _from_file(words[index + 1])
    rest = [*words[:index], *words[index + 2 :]]
    if rest and not rest[0].startswith("-"):
        return [rest[0], *added, *rest[1:]]
    return [*added, *rest]


def _from_file(name: str) -> list[str]:
    import yaml

    if Path(name).suffix not in (".yaml", ".yml"):
        raise CommandError(f"--config {name}: vLLM reads files that end in .yaml or .yml")
    try:
        if os.path.isfile(name) and os.path.getsize(name) > MOST_BYTES:
            raise CommandError(f"--config {name} has more than {MOST_BYTES >> 20} MiB")
        values = yaml.safe_load(Path(name).read_text(encoding="utf-8"))
        _refuse_expansion(name, values)
    except CommandError:
        raise
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        raise CommandError(f"--config {name} cannot be read: {error}") from None
    if not isinstance(values, dict):
        raise CommandError(f"--config {name} is not a mapping of options")
    words: list[str] = []
    for key, value in values.items():
        words += _words_of(f"--{key}", value)
    return words


def _refuse_expansion(name: str, values: Any) -> None:
    """Raise CommandError where aliases stand for more values than a file has bytes."""
    left, rest = MOST_BYTES, [values]
    while rest:
        value = rest.pop()
        inner = value.values() if isinstance(value, dict) else value
        if isinstance(value, dict | list | tuple | set):
            rest.extend(inner)
            left -= len(value)
        if left < 0:
            raise CommandError(
                f"--config {name}: its aliases (*NAME) stand for more than {MOST_BYTES} values; "
                "write options without aliases"
            )


def _words_of(option: str, value: Any) -> list[str]:
    if isinstance(value, bool):
        return [option] if value else []
    if isinstance(value, list):
        return [option, *map(str, value)] if value else []
    return [option, json.dumps(value, default=str) if isinstance(value, dict) else str(value)]


def _plain_spelling(words: Iterable[str]) -> list[str]:
    """Dashes for underscores in names of options; ``-O3`` as the option that it is."""
    found: list[str] = []
    for word in words:
        if word.startswith("--"):
            name, sign, value = word.partition("=")
            first, dot, rest = name.partition(".")
            found.append(f"{first.replace('_', '-')}{dot}{rest}{sign}{value}")
        elif word.startswith("-O") and word != "-O":
            found += ["--optimization-level", word[3:] if word[2] == "=" else word[2:]]
        elif word == "-O":
            found.append("--optimization-level")
        else:
            found.append(word)
    return found


def _with_nested(words: list[str]) -> list[str]:
    """``--a.b 1`` as ``--a '{"b": 1}'``, all of one option together."""
    plain: list[str] = []
    nested: dict[str, dict[str, Any]] = {}
    index = 0
    while index < len(words):
        name, sign, value = words[index].partition("=")
        index += 1
        if not name.startswith("-") or "." not in name:
            plain.append(f"{name}{sign}{value}")
            continue
        if not sign:
            if index >= len(words):
                raise CommandError(f"{name} has no value")
            value = words[index]
            index += 1
        if name.endswith("+"):
            name, value = name[:-1], json.dumps(value.split(","))
        option, *keys = name.split(".")
        _merge(nested.setdefault(option, {}), keys, _nested_value(value))
    for option, values in nested.items():
        plain += [option, json.dumps(values)]
    return plain


def _nested_value(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        pass
    try:
        return human_number(text)
    except ValueError:
        return text


def _merge(into: dict[str, Any], keys: Sequence[str], value: Any) -> None:
    *path, last = keys
    for key in path:
        inner = into.get(key)
        into[key] = inner if isinstance(inner, dict) else {}
        into = into[key]
    if isinstance(value, dict) and isinstance(into.get(last), dict):
        for key, item in value.items():
            _merge(into[last], [key], item)
    elif isinstance(value, list) and isinstance(into.get(last), list):
        into[last] += value
    else:
        into[last] = value


def human_number(text: str) -> int:
    """``1k`` is 1000, ``1K`` 1024, ``25.6k`` 25600; ValueError for what is no whole number."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([kKmMgGtT])", text.strip())
    if match is None:
        return int(text)
    number, letter = match.groups()
    if letter.isupper():
        return int(number) * MULTIPLIERS[letter]
    return int(float(number) * MULTIPLIERS[letter])


def _number_or_auto(text: str) -> int:
    return -1 if text.strip().lower() in ("-1", "auto") else human_number(text)


def _json_or_word(text: str) -> Any:
    return json_value(text) if re.match(r"(?s)^\s*{.*}\s*$", text) else text


FORMS: Mapping[str, Callable[[str], Any]] = {
    "word": str,
    "int": int,
    "float": float,
    "number": human_number,
    "number or auto": _number_or_auto,
    "json": json_value,
    "json or word": _json_or_word,
    "object": json_object,
}
"""Forms of values, by their names in ``serve_options_*.json``."""


def _object_of(option: Mapping[str, Any]) -> Callable[[str], Any]:
    """Reads an object of vLLM's, which has no fields but its own."""
    fields: Sequence[str] = option["fields"]

    def read_object(text: str) -> Any:
        if option["form"] == "object":
            value = json_object(_without_bare_numbers(text))
        elif not isinstance(value := json_value(text), dict):
            return value
        if option.get("dashes"):
            value = {name.replace("-", "_"): item for name, item in value.items()}
        for name in value:
            if name not in fields:
                near = difflib.get_close_matches(name[:MOST_SHOWN], fields, n=1)
                hint = f"; did you mean {near[0]}?" if near else f" among {', '.join(fields)}"
                raise argparse.ArgumentTypeError(f"vLLM has no {name[:MOST_SHOWN]!r}{hint}")
        return value

    return read_object


def _without_bare_numbers(text: str) -> str:
    """``{"size": 80m}`` with the number that vLLM makes of it."""
    parts = QUOTED.split(text)
    for index in range(0, len(parts), 2):
        parts[index] = BARE_NUMBER.sub(lambda one: str(human_number(one.group())), parts[index])
    return "".join(parts)


def _optional(read: Callable[[str], Any]) -> Callable[[str], Any]:
    def read_optional(text: str) -> Any:
        return None if text in ("", "None") else read(text)

    read_optional.__name__ = getattr(read, "__name__", "value")
    return read_optional


@functools.cache
def _parser(release: str) -> argparse.ArgumentParser:
    """Reads what vLLM's parser reads; what is not given is not in the result."""
    parser = _Parser(prog="vllm serve", add_help=False, argument_default=argparse.SUPPRESS)
    parser.add_argument("model_tag", nargs="?")
    for option in options_of(release):
        _add(parser, option)
    return parser


def _add(parser: argparse.ArgumentParser, option: Mapping[str, Any]) -> None:
    common: dict[str, Any] = {"dest": option["name"]}
    form = option["form"]
    if form == "switch":
        parser.add_argument(*option["spellings"], action="store_true", **common)
        return
    if form == "on or off":
        names = [name for name in option["spellings"] if not name.startswith("--no-")]
        parser.add_argument(*names, action=argparse.BooleanOptionalAction, **common)
        return
    read = _object_of(option) if "fields" in option else FORMS[form]
    common["type"] = _optional(read) if option.get("optional") else read
    if "nargs" in option:
        common["nargs"] = option["nargs"]
        if option["nargs"] == "?":
            common["const"] = True
    if option.get("choices"):
        common["choices"] = option["choices"]
    parser.add_argument(*option["spellings"], **common)

# SPDX-License-Identifier: Apache-2.0
"""Options of mkv_ascend, from ``--additional-config '{"mkv_ascend": {...}}'``.

``parse_config`` turns the mapping that vLLM hands over into a frozen ``MkvConfig``. Every key, type
and value is checked, and all problems are reported at once, each with the full path of its key.
The options are described in docs/configuration.md.

``options_schema`` says the same as a JSON schema, for editors: what it takes, ``parse_config``
takes too, except for regular expressions, whose syntax no schema can tell. Names of backends are
taken in any case; the schema has those of the catalog, vLLM's own and aliases, spelled as there.
Reader and schema are both made from the fields of the dataclasses (``option``).

Source of the schema's words: JSON Schema, draft 2020-12
(https://json-schema.org/draft/2020-12).
"""

from __future__ import annotations

import difflib
import operator
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import Field, dataclass, fields, is_dataclass
from enum import Enum
from types import NoneType
from typing import Any, TypeVar

from mkv_ascend.attention import catalog
from mkv_ascend.attention.entry import PLAIN_DTYPES, BackendEntry
from mkv_ascend.attention.options import (
    NAMESPACE,
    SMALLEST_WINDOW,
    AttentionOptions,
    RoleOptions,
    option,
)
from mkv_ascend.attention.patterns import MAX_PATTERN_LENGTH, PatternError, read_pattern
from mkv_ascend.layout.kind import Kind

Schema = dict[str, Any]
Section = TypeVar("Section")

DIALECT = "https://json-schema.org/draft/2020-12/schema"
LONGEST_WINDOW = (1 << 31) - 1
"""What attention's operators take for tokens before a query: a number of 32 bits."""
MOST_SHOWN = 200
"""Characters of a wrong value in a message."""


@dataclass(frozen=True)
class LayoutOptions:
    """How layers are put into KV groups."""

    shared_pages: bool = option(
        True,
        "Whether groups share pages that hold several blocks of one group each.",
        type="boolean",
    )
    without_draft: bool = option(
        False,
        "Whether a target alone is planned where vLLM splits its layers into equal groups.",
        type="boolean",
    )


@dataclass(frozen=True)
class KvCacheOptions:
    """The caches of keys and values."""

    draft_dtype: str | None = option(
        None,
        "Dtype of the draft's cache. Null: what --kv-cache-dtype says.",
        enum=[*sorted(PLAIN_DTYPES), None],
    )
    replicate_draft: bool = option(
        False,
        "Whether each rank keeps all of the draft's keys under decode context parallelism. False: "
        "where its attention needs it.",
        type="boolean",
    )


@dataclass(frozen=True)
class DraftingOptions:
    """How the draft drafts."""

    window: int | None = option(
        None,
        "Tokens that the draft attends to, itself included; blocks before them are given back. "
        "Null: what the draft's model says.",
        type=["integer", "null"],
        minimum=SMALLEST_WINDOW,
        maximum=LONGEST_WINDOW,
        allowed=f"{SMALLEST_WINDOW} to {LONGEST_WINDOW}, the tokens that the draft attends to",
    )
    # 1 would give up a draft that misses one token.
    give_up_below: float | None = option(
        None,
        "Accepted share of draft tokens. If the target accepts less of 1,000 proposals, the draft "
        "is given up until the server is started again. Null: never.",
        type=["number", "null"],
        exclusiveMinimum=0,
        exclusiveMaximum=1,
        allowed="more than 0 and less than 1, the share of draft tokens that the target must "
        "accept",
    )


@dataclass(frozen=True)
class MkvConfig:
    """Options of mkv_ascend. Nothing needs to be given."""

    # Hashable, and equal when they mean the same.
    attention: AttentionOptions = AttentionOptions()
    layout: LayoutOptions = LayoutOptions()
    kv_cache: KvCacheOptions = KvCacheOptions()
    drafting: DraftingOptions = DraftingOptions()
    # A relative path would mean another folder in each process of the engine.
    start_up_report: str | None = option(
        None,
        "An absolute path of a file: what start-up logs, as JSON. Null writes none.",
        type=["string", "null"],
        pattern="^/",
        allowed="an absolute path of a file",
    )


class ConfigError(ValueError):
    """Options that cannot be honoured; ``problems`` holds one text for each."""

    def __init__(self, problems: Iterable[str]) -> None:
        self.problems = tuple(problems)
        count = len(self.problems)
        title = f"--additional-config: {count} problem{'s' if count > 1 else ''} in {NAMESPACE}"
        super().__init__("\n".join([title, *(f"- {problem}" for problem in self.problems)]))


def parse_config(additional_config: Mapping[str, Any] | None) -> MkvConfig:
    """The options in vLLM's ``additional_config``; the defaults where our namespace is absent.

    Raises ConfigError that lists every problem. Backends registered by other packages must be
    registered before (``catalog.register``).
    """
    given = additional_config or {}
    reader = _Reader()
    for key in given:
        # Other keys belong to vllm-ascend, which ignores those it does not know: a slip in ours
        # would pass in silence.
        if key != NAMESPACE and str(key).lower().startswith("mkv"):
            reader.problem(str(key), "is not a key", f"did you mean {NAMESPACE!r}?")
    config = reader.section(NAMESPACE, MkvConfig, given.get(NAMESPACE, {}))
    if reader.problems:
        raise ConfigError(reader.problems)
    return config


def options_schema() -> Schema:
    """The schema of the whole option; keys of vllm-ascend beside ours may be anything.

    Backends registered by other packages must be registered before (``catalog.register``).
    """
    return {
        "$schema": DIALECT,
        "title": "--additional-config of a server with mkv_ascend",
        "type": "object",
        "properties": {NAMESPACE: _section_schema(MkvConfig)},
        # A slip in our own key would pass in silence: vllm-ascend ignores keys it does not know.
        "patternProperties": {f"^(?!{NAMESPACE}$)[mM][kK][vV]": False},
    }


def shown(value: object) -> str:
    """A wrong value as a message shows it: not longer than a few lines."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):
        # A whole number of thousands of digits, or a value nested without end.
        return f"a {type(value).__name__} that is too large to show"
    return text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}... ({len(text)} characters)"


_TYPES = {"boolean": bool, "integer": int, "number": float, "string": str, "null": NoneType}
_LIMITS: dict[str, Callable[[Any, Any], bool]] = {
    "minimum": operator.ge,
    "maximum": operator.le,
    "exclusiveMinimum": operator.gt,
    "exclusiveMaximum": operator.lt,
    "pattern": lambda value, pattern: re.match(pattern, value) is not None,
}
"""Word of a schema -> whether a value is within it."""


def _is_allowed(value: Any, schema: Mapping[str, Any]) -> bool:
    """Whether a single value is what its option's schema says; no conversions are made."""
    if "enum" in schema:
        return value in schema["enum"]
    names = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    if type(value) not in [_TYPES[name] for name in names]:
        return False
    return value is None or all(
        is_within(value, schema[word]) for word, is_within in _LIMITS.items() if word in schema
    )


def _choosable(kind: Kind | None) -> list[BackendEntry]:
    """The backends that options may choose, for ``kind`` or for any."""
    entries = catalog.entries() if kind is None else catalog.entries_for(kind)
    return [entry for entry in entries if not entry.chosen_by_layer]


class _Reader:
    """Reads nested mappings and gathers problems instead of stopping at the first."""

    def __init__(self) -> None:
        self.problems: list[str] = []

    def problem(self, path: str, what: str, allowed: str) -> None:
        self.problems.append(f"{path} {what}; {allowed}")

    def mapping(self, path: str, value: object, what: str) -> Mapping[str, Any]:
        if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
            return value
        self.problem(path, f"is {shown(value)} ({type(value).__name__})", f"allowed: {what}")
        return {}

    def known_keys(self, path: str, value: object, known: Iterable[str]) -> Mapping[str, Any]:
        """The entries of ``value`` that are known; the others are problems."""
        listed = ", ".join(known)
        given = self.mapping(path, value, f"a mapping with the keys {listed}")
        for key in given:
            if key in known:
                continue
            near = difflib.get_close_matches(key[:MOST_SHOWN], known, n=1)
            hint = f"did you mean {near[0]!r}? " if near else ""
            self.problem(
                f"{path}.{key[:MOST_SHOWN]}", "is not an option", f"{hint}allowed: {listed}"
            )
        return {key: given[key] for key in known if key in given}

    def section(self, path: str, kind: type[Section], value: object) -> Section:
        known = {field.name: field for field in fields(kind)}  # type: ignore[arg-type]
        given = self.known_keys(path, value, tuple(known))
        read = {key: self.option(f"{path}.{key}", known[key], given[key]) for key in given}
        return kind(**read)

    def option(self, path: str, field: Field[Any], value: object) -> Any:
        default = field.default
        if isinstance(default, RoleOptions):
            return self.role(path, value)
        if field.name == "layers":
            return self.layers(path, value)
        if is_dataclass(default):
            return self.section(path, type(default), value)
        schema = field.metadata
        if _is_allowed(value, schema):
            return type(default)(value) if isinstance(default, Enum) else value
        words = ", ".join(word for word in schema.get("enum", ()) if word)
        allowed = schema.get("allowed", words or "true or false")
        self.problem(path, f"is {shown(value)}", f"allowed: {allowed}")
        return default

    def role(self, path: str, value: object) -> RoleOptions:
        if isinstance(value, str):
            return RoleOptions(every_kind=self.backend(path, value, None))
        if not isinstance(value, Mapping):
            self.mapping(path, value, "a backend name, or a mapping from kind to backend name")
            return RoleOptions()
        given = self.known_keys(path, value, tuple(kind.value for kind in Kind))
        by_kind = [
            (Kind(key), self.backend(f"{path}.{key}", given[key], Kind(key))) for key in given
        ]
        return RoleOptions(by_kind=tuple((kind, name) for kind, name in by_kind if name))

    def layers(self, path: str, value: object) -> tuple[tuple[str, str], ...]:
        given = self.mapping(path, value, "a mapping from regular expression to backend name")
        patterns: list[tuple[str, str]] = []
        for pattern, name in given.items():
            place = f"{path}[{shown(pattern)}]"
            try:
                read_pattern(pattern)
            except PatternError as error:
                self.problem(place, str(error), "correct the pattern")
            backend = self.backend(place, name, None)
            if backend is not None:
                patterns.append((pattern, backend))
        return tuple(patterns)

    def backend(self, path: str, value: object, kind: Kind | None) -> str | None:
        """The canonical name of a backend that options may choose (for ``kind``, when given)."""
        fitting = [entry.name for entry in _choosable(kind)]
        allowed = f"allowed: {', '.join(fitting) or 'none, the layer names its backend itself'}"
        if not isinstance(value, str):
            self.problem(path, f"is {shown(value)} ({type(value).__name__})", allowed)
            return None
        try:
            entry = catalog.find(value)
        except catalog.CatalogError as error:
            self.problem(
                path, f"is {shown(value)}, which is no backend", f"{error.hint} {allowed}".lstrip()
            )
            return None
        if entry.name in fitting:
            return entry.name
        reason = (
            "is named by the layer's class and cannot be chosen"
            if entry.chosen_by_layer
            else f"does not serve {kind}"
        )
        self.problem(path, f"is {shown(value)}, which {reason}", allowed)
        return None


def _section_schema(kind: type[Any]) -> Schema:
    described = {field.name: _option_schema(field) for field in fields(kind)}
    return {"description": kind.__doc__, **_object_schema(described)}


def _option_schema(field: Field[Any]) -> Schema:
    default = field.default
    description = {"description": field.metadata.get("description")}
    if isinstance(default, RoleOptions):
        by_kind = {kind.value: _backend_schema(kind) for kind in Kind}
        return {**description, "anyOf": [_backend_schema(None), _object_schema(by_kind)]}
    if field.name == "layers":
        return {
            **description,
            "type": "object",
            "propertyNames": {"maxLength": MAX_PATTERN_LENGTH},
            "additionalProperties": _backend_schema(None),
        }
    if is_dataclass(default):
        return _section_schema(type(default))
    schema = {word: said for word, said in field.metadata.items() if word != "allowed"}
    return {**schema, "default": default.value if isinstance(default, Enum) else default}


def _object_schema(properties: Mapping[str, Schema | bool]) -> Schema:
    return {"type": "object", "properties": properties, "additionalProperties": False}


def _backend_schema(kind: Kind | None) -> Schema | bool:
    """A name of those that options may choose; nothing where layers name their backend."""
    chosen = _choosable(kind)
    others = sorted({name for entry in chosen for name in (*entry.aliases, *entry.vllm_names)})
    return {"enum": [*(entry.name for entry in chosen), *others]} if chosen else False

# SPDX-License-Identifier: Apache-2.0
"""Options of mkv_ascend, from ``--additional-config '{"mkv_ascend": {...}}'``.

``parse_config`` turns the mapping that vLLM hands over into a frozen ``MkvConfig``. Every key, type
and value is checked, and all problems are reported at once, each with the full path of its key.
The options are described in docs/configuration.md.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from mkv_ascend.attention import catalog
from mkv_ascend.attention.draft_window import SMALLEST_WINDOW
from mkv_ascend.attention.options import NAMESPACE, AttentionOptions, RoleOptions, WindowBound
from mkv_ascend.attention.patterns import PatternError, read_pattern
from mkv_ascend.attention.request import PLAIN_DTYPES
from mkv_ascend.layout.kind import Kind

LONGEST_WINDOW = (1 << 31) - 1
"""What attention's operators take for tokens before a query: a number of 32 bits."""
MOST_SHOWN = 200
"""Characters of a wrong value in a message."""


def shown(value: object) -> str:
    """A wrong value as a message shows it: not longer than a few lines."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):
        # A whole number of thousands of digits, or a value nested without end.
        return f"a {type(value).__name__} that is too large to show"
    return text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}... ({len(text)} characters)"


class ConfigError(ValueError):
    """Options that cannot be honoured; ``problems`` holds one text for each."""

    def __init__(self, problems: Iterable[str]) -> None:
        self.problems = tuple(problems)
        count = len(self.problems)
        title = f"--additional-config: {count} problem{'s' if count > 1 else ''} in {NAMESPACE}"
        super().__init__("\n".join([title, *(f"- {problem}" for problem in self.problems)]))


@dataclass(frozen=True)
class LayoutOptions:
    """The keys under ``layout``."""

    shared_pages: bool = True
    """Whether KV groups share pages, of which each holds several blocks of one group."""
    without_draft: bool = False
    """Whether a target alone is planned where vLLM would split its layers into equal groups."""


@dataclass(frozen=True)
class KvCacheOptions:
    """The keys under ``kv_cache``."""

    draft_dtype: str | None = None
    """Dtype of the draft's KV cache; None leaves what vLLM's --kv-cache-dtype says."""
    replicate_draft: bool = False
    """Whether each rank keeps all of the draft's keys, where ranks share those of the target's."""


@dataclass(frozen=True)
class DraftingOptions:
    """The keys under ``drafting``."""

    window: int | None = None
    """Tokens that the draft attends to, itself included; None leaves what its model says."""
    give_up_below: float | None = None
    """Accepted share of draft tokens below which the draft is given up; None: never."""


@dataclass(frozen=True)
class MkvConfig:
    """All options; hashable, equal when they mean the same."""

    attention: AttentionOptions = field(default_factory=AttentionOptions)
    layout: LayoutOptions = field(default_factory=LayoutOptions)
    kv_cache: KvCacheOptions = field(default_factory=KvCacheOptions)
    drafting: DraftingOptions = field(default_factory=DraftingOptions)
    start_up_report: str | None = None
    """File for what start-up logs, as JSON; None writes none."""


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
    config = reader.config(given.get(NAMESPACE, {}))
    if reader.problems:
        raise ConfigError(reader.problems)
    return config


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

    def known_keys(self, path: str, value: object, known: tuple[str, ...]) -> Mapping[str, Any]:
        """The entries of ``value`` that are known; the others are problems."""
        given = self.mapping(path, value, f"a mapping with the keys {', '.join(known)}")
        for key in given:
            if key in known:
                continue
            near = difflib.get_close_matches(key[:MOST_SHOWN], known, n=1)
            hint = f"did you mean {near[0]!r}? " if near else ""
            self.problem(
                f"{path}.{key[:MOST_SHOWN]}",
                "is not an option",
                f"{hint}allowed: {', '.join(known)}",
            )
        return {key: given[key] for key in known if key in given}

    def config(self, value: object) -> MkvConfig:
        keys = ("attention", "layout", "kv_cache", "drafting", "start_up_report")
        given = self.known_keys(NAMESPACE, value, keys)
        return MkvConfig(
            attention=self.attention(f"{NAMESPACE}.attention", given),
            layout=self.layout(f"{NAMESPACE}.layout", given),
            kv_cache=self.kv_cache(f"{NAMESPACE}.kv_cache", given),
            drafting=self.drafting(f"{NAMESPACE}.drafting", given),
            start_up_report=self.file(f"{NAMESPACE}.start_up_report", given.get("start_up_report")),
        )

    def file(self, path: str, value: object) -> str | None:
        # A relative path would mean another folder in each process of the engine.
        if value is None or (isinstance(value, str) and Path(value).is_absolute()):
            return value
        self.problem(path, f"is {shown(value)}", "allowed: an absolute path of a file")
        return None

    def kv_cache(self, path: str, parent: Mapping[str, Any]) -> KvCacheOptions:
        keys = ("draft_dtype", "replicate_draft")
        given = self.known_keys(path, parent.get("kv_cache", {}), keys)
        dtype = given.get("draft_dtype")
        if dtype is not None and not (isinstance(dtype, str) and dtype in PLAIN_DTYPES):
            allowed = ", ".join(sorted(PLAIN_DTYPES))
            self.problem(f"{path}.draft_dtype", f"is {shown(dtype)}", f"allowed: {allowed}")
            dtype = None
        return KvCacheOptions(dtype, self.flag(path, given, "replicate_draft"))

    def flag(self, path: str, given: Mapping[str, Any], name: str, default: bool = False) -> bool:
        value = given.get(name, default)
        if type(value) is bool:
            return value
        self.problem(f"{path}.{name}", f"is {shown(value)}", "allowed: true or false")
        return default

    def drafting(self, path: str, parent: Mapping[str, Any]) -> DraftingOptions:
        given = self.known_keys(path, parent.get("drafting", {}), ("window", "give_up_below"))
        return DraftingOptions(
            self.window(f"{path}.window", given.get("window")),
            self.share(f"{path}.give_up_below", given.get("give_up_below")),
        )

    def window(self, path: str, value: object) -> int | None:
        if value is None or (type(value) is int and SMALLEST_WINDOW <= value <= LONGEST_WINDOW):
            return value
        self.problem(
            path,
            f"is {shown(value)}",
            f"allowed: {SMALLEST_WINDOW} to {LONGEST_WINDOW}, the tokens that the draft attends to",
        )
        return None

    def share(self, path: str, value: object) -> float | None:
        """A share of draft tokens; 1 would give up a draft that misses one token."""
        if value is None:
            return None
        if type(value) is float and 0 < value < 1:
            return value
        self.problem(
            path,
            f"is {shown(value)}",
            "allowed: more than 0 and less than 1, the share of draft tokens that the target must "
            "accept",
        )
        return None

    def layout(self, path: str, parent: Mapping[str, Any]) -> LayoutOptions:
        names = [field.name for field in fields(LayoutOptions)]
        given = self.known_keys(path, parent.get("layout", {}), tuple(names))
        usual = LayoutOptions()
        return LayoutOptions(*(self.flag(path, given, n, getattr(usual, n)) for n in names))

    def attention(self, path: str, parent: Mapping[str, Any]) -> AttentionOptions:
        keys = ("target", "draft", "layers", "window_bound")
        given = self.known_keys(path, parent.get("attention", {}), keys)
        return AttentionOptions(
            target=self.role(f"{path}.target", given["target"])
            if "target" in given
            else RoleOptions(),
            draft=self.role(f"{path}.draft", given["draft"]) if "draft" in given else RoleOptions(),
            layers=self.layers(f"{path}.layers", given.get("layers", {})),
            window_bound=self.window_bound(
                f"{path}.window_bound", given.get("window_bound", WindowBound.EXACT.value)
            ),
        )

    def role(self, path: str, value: object) -> RoleOptions:
        if isinstance(value, str):
            return RoleOptions(every_kind=self.backend(path, value, None))
        kinds = tuple(kind.value for kind in Kind)
        what = "a backend name, or a mapping from kind to backend name"
        if not isinstance(value, Mapping):
            self.mapping(path, value, what)
            return RoleOptions()
        by_kind: list[tuple[Kind, str]] = []
        for key, name in self.known_keys(path, value, kinds).items():
            backend = self.backend(f"{path}.{key}", name, Kind(key))
            if backend is not None:
                by_kind.append((Kind(key), backend))
        return RoleOptions(by_kind=tuple(by_kind))

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
        fitting = [
            entry.name
            for entry in (catalog.entries() if kind is None else catalog.entries_for(kind))
            if not entry.chosen_by_layer
        ]
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
        if entry.name not in fitting:
            reason = (
                "is named by the layer's class and cannot be chosen"
                if entry.chosen_by_layer
                else f"does not serve {kind}"
            )
            self.problem(path, f"is {shown(value)}, which {reason}", allowed)
            return None
        return entry.name

    def window_bound(self, path: str, value: object) -> WindowBound:
        allowed = tuple(bound.value for bound in WindowBound)
        if isinstance(value, str) and value in allowed:
            return WindowBound(value)
        self.problem(path, f"is {shown(value)}", f"allowed: {', '.join(allowed)}")
        return WindowBound.EXACT

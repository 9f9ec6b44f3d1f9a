# SPDX-License-Identifier: Apache-2.0
"""Replacements of foreign code, each with a record.

Foreign code is replaced only where neither a subclass nor an official hook serves. A record stands
beside its replacement:

* ``@patch``: our function is called in place of a foreign one and receives the original;
* ``@override``: a method of our subclass replaces a method of its foreign base;
* ``record``: any other change to attributes of foreign modules, classes and objects.

``target`` and ``reads`` name foreign code as ``module:qualified.name``. The syntax trees of that
code are the guard: before anything starts they are compared with the recorded ones
(``fingerprints.py``). Arguments are literals, so that tools can read records without importing the
host (``tools/foreign_names.py``). docs/patches.md is generated from the records.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import Any, TypeVar

from mkv_ascend.adapters.refusal import StartUpRefused

Function = TypeVar("Function", bound=Callable[..., Any])
REPLACEMENT = "mkv_ascend_replacement"
"""Attribute of a wrapper: the function of ours that it calls."""


class PatchRefused(StartUpRefused):
    """The foreign code does not look as the patch expects, so nothing was changed."""


def expect(condition: bool, patch: str, what: str) -> None:
    """Check what fingerprints cannot see: objects that exist only at run time.

    Raises:
        PatchRefused: the condition is false. The message names the patch and what changed.
    """
    if not condition:
        raise PatchRefused(
            f"patch {patch!r} no longer fits: {what}. The installed vLLM or vllm-ascend is not "
            "the one this release was tested with; reinstall both, or report this."
        )


@dataclass(frozen=True)
class Record:
    """What is replaced.

    Attributes:
        name: name of the patch, in messages, in ``patches.toml`` and in docs/patches.md.
        target: the foreign code that is replaced; several places when they change together.
        reads: other foreign code that the patch relies on.
    """

    name: str
    target: str | tuple[str, ...]
    reads: tuple[str, ...] = ()

    @property
    def targets(self) -> tuple[str, ...]:
        """``target`` as a tuple."""
        return (self.target,) if isinstance(self.target, str) else self.target

    @contextlib.contextmanager
    def replaced(self, value: Any) -> Iterator[None]:
        """Replace the only target by ``value`` while the block runs.

        Raises:
            PatchRefused: the target is gone.
        """
        (target,) = self.targets
        with replaced(*_owner(target, self.name), value):
            yield


record = Record


@dataclass
class Patch:
    """A record and the functions that replace its targets."""

    record: Record
    functions: dict[str, Callable[..., Any]] = field(default_factory=dict)

    def also(self, *, target: str) -> Callable[[Function], Function]:
        """Decorate another function of this patch; ``target`` is one of the record's targets."""
        if target not in self.record.targets:
            raise ValueError(f"{target} is no target of {self.record.name!r}: name it there")

        def keep(function: Function) -> Function:
            self.functions[target] = function
            return function

        return keep

    def on_one_host(self, *, target: str) -> Callable[[Function], Function]:
        """Decorate a function of this patch for a target that one host alone has.

        It stands in that host's adapter, and the record has it there.
        """
        if target not in self.record.targets:
            self.record = replace(self.record, target=(*self.record.targets, target))
        return self.also(target=target)

    def apply(self) -> None:
        """Put the functions in place of the targets. Idempotent.

        Raises:
            PatchRefused: a target is gone.
        """
        places = {target: _owner(target, self.record.name) for target in self.functions}
        for target, function in self.functions.items():
            wrap(*places[target], function)


def patch(
    *, name: str, target: str | tuple[str, ...], reads: tuple[str, ...] = ()
) -> Callable[[Callable[..., Any]], Patch]:
    """Make a ``Patch`` from a function that takes the original and then its arguments.

    For the arguments see ``Record``. The function replaces the first target.
    """
    made = Patch(Record(name, target, reads))

    def keep(function: Callable[..., Any]) -> Patch:
        made.functions[made.record.targets[0]] = function
        return made

    return keep


def override(record: Record) -> Callable[[Function], Function]:
    """Mark a method as the replacement of the record's target, a method of the foreign base.

    Raises:
        ValueError: no target of the record has the method's name.
    """

    def keep(function: Function) -> Function:
        if function.__name__ not in {target.rpartition(".")[2] for target in record.targets}:
            raise ValueError(f"{record.name!r} does not name {function.__name__}")
        return function

    return keep


def wrap(owner: Any, name: str, function: Callable[..., Any]) -> None:
    """Make ``owner.name`` call ``function(original, *arguments)``. Idempotent.

    Class methods stay class methods, and static methods stay static.
    """
    static = inspect.getattr_static(owner, name)
    kind = type(static) if isinstance(static, classmethod | staticmethod) else None
    original: Callable[..., Any] = static if kind is None else static.__func__
    if any(getattr(layer, REPLACEMENT, None) is function for layer in _layers(original)):
        return

    @functools.wraps(original)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(original, *args, **kwargs)

    setattr(wrapper, REPLACEMENT, function)
    setattr(owner, name, wrapper if kind is None else kind(wrapper))


def _layers(function: Any) -> Iterator[Any]:
    """The function, then the function that it wraps, and so on inwards."""
    while function is not None:
        yield function
        function = getattr(function, "__wrapped__", None)


@contextlib.contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Replace one attribute of a module, a class or an object while the block runs.

    Raises:
        PatchRefused: there is no such attribute to replace.
    """
    expect(hasattr(owner, name), name, f"{getattr(owner, '__name__', owner)} has no {name}")
    before = inspect.getattr_static(owner, name) if inspect.isclass(owner) else getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


@contextlib.contextmanager
def lent(config: Any, name: str, value: Any) -> Iterator[None]:
    """Let ``config`` answer for an attribute while the block runs, if it has none of its own.

    Args:
        config: a configuration of vLLM or Transformers.
        name: the attribute.
        value: its value.
    """
    if hasattr(config, name):
        yield
        return
    setattr(config, name, value)
    try:
        yield
    finally:
        delattr(config, name)


def _owner(target: str, patch: str) -> tuple[Any, str]:
    """The module or class that holds a target, and the target's name in it."""
    module, _, qualified = target.partition(":")
    *path, name = qualified.split(".")
    owner: Any = import_module(module)
    for part in path:
        expect(hasattr(owner, part), patch, f"{target}: there is no {part}")
        owner = getattr(owner, part)
    expect(hasattr(owner, name), patch, f"{target} is gone")
    return owner, name

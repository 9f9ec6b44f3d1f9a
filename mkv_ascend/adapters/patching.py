# SPDX-License-Identifier: Apache-2.0
"""Replacements of foreign code, each with its record: what, why, which test, until when.

A subclass or an official hook is always tried first. A record stands beside its replacement:

* ``@patch``: a function that is called in place of a foreign one, which it is handed;
* ``@override``: a method of a subclass of ours that replaces one of its foreign base;
* ``record``: any other change, of attributes of foreign modules, classes and objects.

``target`` and ``reads`` name foreign code as ``module:qualified.name``. Its syntax trees are the
guard: they are compared with the recorded ones before anything starts (``fingerprints.py``).
Arguments are literals, so that tools read records without importing the host
(``tools/foreign_names.py``); docs/patches.md is made from them.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, TypeVar

from mkv_ascend.adapters.refusal import StartUpRefused

Function = TypeVar("Function", bound=Callable[..., Any])
REPLACEMENT = "mkv_ascend_replacement"
"""Attribute of a wrapper: the function of ours that it calls."""


class PatchRefused(StartUpRefused):
    """The foreign code does not look as the patch expects, so nothing was changed."""


def expect(condition: bool, patch: str, what: str) -> None:
    """What fingerprints cannot see: how objects look that exist only at run time.

    Raises:
        PatchRefused: naming the patch and what is no longer as it was.
    """
    if not condition:
        raise PatchRefused(
            f"patch {patch!r} no longer fits: {what}. The installed vLLM or vllm-ascend is not "
            "the one this release was tested with; reinstall both, or report this."
        )


@dataclass(frozen=True)
class Record:
    """What is replaced, and why.

    Attributes:
        name: of the patch, in messages and in docs/patches.md.
        target: the foreign code that is replaced; several when they change together.
        why: what goes wrong without it.
        until: when it can go.
        test: file of the test that fails without it, or ``file::function``.
        reads: other foreign code that it counts on.
        writes: attributes that code of the record's module sets on foreign objects.
        stock: test that shows the host's own code failing, where it is another than ``test``.
    """

    name: str
    target: str | tuple[str, ...]
    why: str
    until: str
    test: str
    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    stock: str = ""

    @property
    def targets(self) -> tuple[str, ...]:
        """``target`` as a tuple."""
        return (self.target,) if isinstance(self.target, str) else self.target

    @contextlib.contextmanager
    def replaced(self, value: Any) -> Iterator[None]:
        """The one target is ``value`` while the block runs.

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
        """Decorates another function of the same patch. ``target`` is one of the record's."""
        if target not in self.record.targets:
            raise ValueError(f"{target} is no target of {self.record.name!r}: name it there")

        def keep(function: Function) -> Function:
            self.functions[target] = function
            return function

        return keep

    def apply(self) -> None:
        """Put the functions in place of the targets. Idempotent.

        Raises:
            PatchRefused: a target is gone.
        """
        places = {target: _owner(target, self.record.name) for target in self.functions}
        for target, function in self.functions.items():
            wrap(*places[target], function)


def patch(
    *,
    name: str,
    target: str | tuple[str, ...],
    why: str,
    until: str,
    test: str,
    reads: tuple[str, ...] = (),
    writes: tuple[str, ...] = (),
    stock: str = "",
) -> Callable[[Callable[..., Any]], Patch]:
    """Makes a ``Patch`` of a function that takes the original and then its arguments.

    Arguments: see ``Record``. Of several targets the function replaces the first.
    """
    made = Patch(Record(name, target, why, until, test, reads, writes, stock))

    def keep(function: Callable[..., Any]) -> Patch:
        made.functions[made.record.targets[0]] = function
        return made

    return keep


def override(record: Record) -> Callable[[Function], Function]:
    """Says that a method replaces the record's target, a method of its class's foreign base.

    Raises:
        ValueError: the record is of a method of another name.
    """

    def keep(function: Function) -> Function:
        if function.__name__ not in {target.rpartition(".")[2] for target in record.targets}:
            raise ValueError(f"{record.name!r} does not name {function.__name__}")
        return function

    return keep


def wrap(owner: Any, name: str, function: Callable[..., Any]) -> None:
    """Have ``owner.name`` call ``function(original, *arguments)``. Idempotent.

    Class methods and static methods stay what they are.
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
    """A function and those that it wraps, one in the other."""
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

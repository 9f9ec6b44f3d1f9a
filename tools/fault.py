# SPDX-License-Identifier: Apache-2.0
"""One fault that is planted on purpose, and whether it can be planted."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType

PACKAGE, ADAPTERS = "mkv_ascend", "adapters"


class OutOfDateError(ValueError):
    """A fault does not fit the sources any more; the message says what to change."""


@dataclass(frozen=True)
class Fault:
    """A wrong line of ours, most of them in an adapter.

    Attributes:
        name: of its own, which stays when lines move.
        file: in the folder ``room``.
        text: what is replaced; it occurs once in the file.
        instead: what stands there then.
        wrong: what goes wrong, in one sentence.
        tests: for pytest, those that ought to notice; the cheapest first.
        host: of tools/hosts.py, on which the tests run.
        room: the folder of ``mkv_ascend`` that the file is in.
        same: why the fault changes nothing that could be noticed; then no test is run.
    """

    name: str
    file: str
    text: str
    instead: str
    wrong: str
    tests: tuple[str, ...] = ()
    host: str = "0.23"
    room: str = ADAPTERS
    same: str = ""

    @property
    def path(self) -> str:
        """Of the file, in the clone."""
        return f"{PACKAGE}/{self.room}/{self.file}"

    @property
    def test_files(self) -> tuple[str, ...]:
        """The files that its tests are in."""
        return tuple(dict.fromkeys(test.partition("::")[0] for test in self.tests))

    def planted(self, source: str) -> str:
        """The file's source with the fault.

        Raises:
            OutOfDateError: its text is not there, or is there more than once.
        """
        found = source.count(self.text)
        if found != 1:
            raise OutOfDateError(
                f"fault {self.name!r}: its text occurs {found} times in {self.path}, not once; "
                "write it anew"
            )
        return source.replace(self.text, self.instead)

    def digest(self, root: Path) -> str:
        """Changes whenever the fault must be judged anew: with it, its file, or its tests."""
        texts = [(root / name).read_text("utf-8") for name in (self.path, *self.test_files)]
        parts = [self.text, self.instead, *self.tests, *texts]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def read_faults(folder: Path) -> tuple[Fault, ...]:
    """Faults of all lists in a folder; a text of several lines is a list of them there."""
    found = []
    for path in sorted(folder.glob("*.json")):
        for given in json.loads(path.read_text("utf-8")):
            texts = {name: _joined(given[name]) for name in ("text", "instead")}
            found.append(Fault(**{**given, **texts, "tests": tuple(given.get("tests", ()))}))
    return tuple(found)


def _joined(text: str | list[str]) -> str:
    return text if isinstance(text, str) else "\n".join(text)


def check(faults: Sequence[Fault], root: Path) -> list[str]:
    """What is wrong with a list of faults; empty if every one can be planted."""
    names = Counter(fault.name for fault in faults)
    found = [f"two faults are named {name!r}" for name, number in names.items() if number > 1]
    for fault in faults:
        path = root / fault.path
        if not path.is_file():
            found.append(f"fault {fault.name!r}: there is no file {fault.path}")
            continue
        try:
            compile(fault.planted(path.read_text("utf-8")), str(path), "exec")
        except (OutOfDateError, SyntaxError) as error:
            found.append(f"fault {fault.name!r}: {error}")
        if bool(fault.tests) == bool(fault.same):
            found.append(f"fault {fault.name!r}: name tests, or why it does the same")
        missing = [test for test in fault.tests if not _is_there(root, test)]
        found += [f"fault {fault.name!r}: there is no test {test}" for test in missing]
    return found


def _is_there(root: Path, test: str) -> bool:
    """Whether the file of a test is there, and a function of the test's name in it."""
    file, _, name = test.partition("::")
    path = root / file
    function = f"def {name.partition('[')[0]}(" if name else ""
    return path.is_file() and function in path.read_text("utf-8")


def is_inside_functions(before: str, after: str) -> bool:
    """Whether two sources of a module differ inside functions alone.

    Functions of a module that is loaded can be given other code. What the module did while it was
    loaded, such as a constant, a default or a class, cannot be undone.
    """
    one, other = (compile(source, "module", "exec") for source in (before, after))
    return _outside(one) == _outside(other)


def _outside(code: CodeType) -> list[object]:
    """All that a module and its classes do by themselves, and what functions they make."""
    parts: list[object] = [code.co_code, code.co_names]
    for constant in code.co_consts:
        if not isinstance(constant, CodeType):
            parts.append((type(constant), constant))
        elif is_function(constant):
            parts.append((constant.co_name, constant.co_freevars, constant.co_argcount))
        else:
            parts += _outside(constant)
    return parts


def is_function(code: CodeType) -> bool:
    """Whether this is the code of a function, and not of a class."""
    return bool(code.co_flags & 0x02)  # its variables are its own: CO_NEWLOCALS

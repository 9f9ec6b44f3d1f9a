# SPDX-License-Identifier: Apache-2.0
"""Changes that wait for the import of a module."""

import importlib
import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from emulated_npu import import_hooks
from emulated_npu.import_hooks import after_import

PACKAGE = "waits_for_import"


@pytest.fixture(autouse=True)
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A package ``waits_for_import`` with a module ``part``, each with VALUE = 1."""
    folder = tmp_path / PACKAGE
    folder.mkdir()
    (folder / "__init__.py").write_text("VALUE = 1\n")
    (folder / "part.py").write_text("VALUE = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(import_hooks._FINDER, "changes", {})
    yield
    for name in [name for name in sys.modules if name.split(".")[0] == PACKAGE]:
        del sys.modules[name]


def set_two(module: ModuleType) -> None:
    assert module.VALUE == 1, "the change must come after the module's own code"
    module.VALUE = 2  # type: ignore[attr-defined]


def test_a_change_waits_for_the_import_and_leaves_other_modules_alone() -> None:
    after_import(f"{PACKAGE}.part", set_two)
    assert PACKAGE not in sys.modules
    assert importlib.import_module(PACKAGE).VALUE == 1
    assert importlib.import_module(f"{PACKAGE}.part").VALUE == 2


def test_a_module_that_is_imported_already_is_changed_at_once() -> None:
    module = importlib.import_module(PACKAGE)
    after_import(PACKAGE, set_two)
    assert module.VALUE == 2


def test_several_changes_of_one_module_are_made_in_order() -> None:
    seen: list[int] = []
    after_import(f"{PACKAGE}.part", lambda module: seen.append(1))
    after_import(f"{PACKAGE}.part", lambda module: seen.append(2))
    importlib.import_module(f"{PACKAGE}.part")
    assert seen == [1, 2]


def test_the_module_keeps_its_own_loader_so_that_its_source_is_found() -> None:
    after_import(PACKAGE, lambda module: None)
    module = importlib.import_module(PACKAGE)
    assert inspect.getsource(module) == "VALUE = 1\n"


def test_a_change_that_fails_fails_the_import() -> None:
    def refuse(module: ModuleType) -> None:
        raise RuntimeError("cannot change it")

    after_import(f"{PACKAGE}.part", refuse)
    with pytest.raises(RuntimeError, match="cannot change it"):
        importlib.import_module(f"{PACKAGE}.part")
    assert f"{PACKAGE}.part" not in sys.modules


def test_a_module_that_does_not_exist_stays_an_import_error() -> None:
    after_import(f"{PACKAGE}.absent", set_two)
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module(f"{PACKAGE}.absent")

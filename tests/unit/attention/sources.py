# SPDX-License-Identifier: Apache-2.0
"""Sources of installed packages, read without importing them."""

import ast
import importlib.util
from pathlib import Path

import pytest


def folder_of(package: str) -> Path:
    """Where an installed package lies, or a module of it would but for its suffix."""
    top, *rest = package.split(".")
    spec = importlib.util.find_spec(top)
    if spec is None or spec.submodule_search_locations is None:
        pytest.skip(f"{top} is not installed, so there is no source to compare with")
    return Path(spec.submodule_search_locations[0], *rest)


def source_of(module_name: str) -> ast.Module:
    """The parsed source of an installed module."""
    return ast.parse(folder_of(module_name).with_suffix(".py").read_text())


def class_of(class_path: str) -> ast.ClassDef:
    """A class of an installed module, ``module:Class``."""
    module_name, _, class_name = class_path.partition(":")
    found = [
        node
        for node in source_of(module_name).body
        if isinstance(node, ast.ClassDef) and node.name == class_name
    ]
    assert found, f"{class_path} does not exist in the installed package"
    return found[0]

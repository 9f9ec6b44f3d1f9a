# SPDX-License-Identifier: Apache-2.0
"""The operator schemas of the installed vllm-ascend.

They are always those of the version that is installed, and come from the first of these:

- the read-only data of its extension module. That module links CANN, so it cannot be loaded on a
  machine without an NPU; the strings with which it would register its operators can be read all the
  same;
- the file that ``emulated_npu.custom_operators.sources`` wrote beside the installed package, where
  vllm-ascend was installed from its sources and has no extension module.
"""

from __future__ import annotations

import importlib.machinery
import importlib.metadata
import importlib.util
import re
from collections.abc import Iterable
from pathlib import Path

import torch

PACKAGE = "vllm_ascend"
EXTENSION = "vllm_ascend_C"

# A C string: an identifier, a parenthesis, and an arrow with what is returned.
_SCHEMA = re.compile(
    rb"(?<=\x00)([A-Za-z_][A-Za-z0-9_]*\([\x20-\x7e]*\)\s*->\s*[\x20-\x7e]+)(?=\x00)"
)


class SchemaError(RuntimeError):
    """The installed vllm-ascend does not hold the schemas in a form that is known."""


def find_schemas() -> Path | None:
    """The file that holds the installed vllm-ascend's schemas; None if it is not installed.

    Does not import vllm_ascend. Raises SchemaError if the package is there and no such file is.
    """
    folders = installed_folders()
    for folder in folders:
        for suffix in importlib.machinery.EXTENSION_SUFFIXES:
            if (folder / f"{EXTENSION}{suffix}").is_file():
                return folder / f"{EXTENSION}{suffix}"
        # Not loaded, only read: a file for another Python holds the same strings.
        for path in sorted(folder.glob(f"{EXTENSION}*.so")):
            return path
        if written_file(folder).is_file():
            return written_file(folder)
    if not folders:
        return None
    version = installed_version()
    raise SchemaError(
        f"no {EXTENSION}*.so in {', '.join(map(str, folders))}: vllm-ascend is installed from its "
        f"sources, without the extension module whose operator schemas the emulated NPU needs. "
        f"Give it the sources once: `pip download --no-deps --no-binary :all: "
        f"vllm-ascend=={version}`, then `python -m emulated_npu.custom_operators.sources "
        f"vllm_ascend-{version}.tar.gz`"
    )


def installed_folders() -> list[Path]:
    """The folders of the installed package, which is not imported; none if it is not there."""
    found = importlib.util.find_spec(PACKAGE)
    if found is None or not found.submodule_search_locations:
        return []
    return [Path(location) for location in found.submodule_search_locations]


def installed_version() -> str:
    """The version of the installed vllm-ascend; ``VERSION`` where its metadata are missing."""
    try:
        return importlib.metadata.version(PACKAGE)
    except importlib.metadata.PackageNotFoundError:
        return "VERSION"


def written_file(package_folder: Path) -> Path:
    """Where ``emulated_npu.custom_operators.sources`` keeps the schemas: one on each line."""
    return package_folder.parent / f"{PACKAGE}-{installed_version()}.operators.txt"


def read_schemas(path: Path) -> dict[str, str]:
    """Operator name (``name`` or ``name.overload``) -> schema, in the order of the file.

    Raises SchemaError as ``collect`` does.
    """
    if path.suffix == ".txt":
        return collect(path.read_text(encoding="ascii").splitlines(), path)
    matches = _SCHEMA.finditer(path.read_bytes())
    return collect((match.group(1).decode("ascii") for match in matches), path)


def collect(found: Iterable[str], origin: Path) -> dict[str, str]:
    """Operator name -> schema, of schemas found in ``origin``, with single spaces.

    Raises SchemaError if there are none, if one does not parse, or if two of one name differ.
    """
    schemas: dict[str, str] = {}
    for text in found:
        schema = " ".join(text.split())
        name = schema[: schema.index("(")] if "(" in schema else schema
        _require_parses(schema, origin)
        if schemas.setdefault(name, schema) != schema:
            raise SchemaError(
                f"two schemas of {name} in {origin}: {schemas[name]!r} and {schema!r}; the "
                f"emulated NPU cannot tell which one is meant"
            )
    if not schemas:
        raise SchemaError(
            f"no operator schema in {origin} ({origin.stat().st_size} bytes): the file does not "
            f"come from vllm-ascend, or keeps its schemas in a form that is not known. Install "
            f"vllm-ascend 0.23.0 or 0.30.0rc2"
        )
    return schemas


def parameter_names(schema: str) -> list[str]:
    """The names of a schema's parameters, in order."""
    return [argument.name for argument in torch._C.parse_schema(schema).arguments]


def _require_parses(schema: str, origin: Path) -> None:
    try:
        torch._C.parse_schema(schema)
    except RuntimeError as error:
        raise SchemaError(
            f"{origin} holds what looks like an operator schema and is none: {schema!r} ({error})"
        ) from error

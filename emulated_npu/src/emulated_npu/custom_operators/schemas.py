# SPDX-License-Identifier: Apache-2.0
"""The operator schemas that stand in the read-only data of vllm-ascend's extension module.

That module links CANN, so it cannot be loaded on a machine without an NPU; the strings with which
it would register its operators can be read from the file all the same, and they are always those
of the version that is installed.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import re
from pathlib import Path

import torch

PACKAGE = "vllm_ascend"
EXTENSION = "vllm_ascend_C"

# A C string: an identifier, a parenthesis, and an arrow with what is returned.
_SCHEMA = re.compile(
    rb"(?<=\x00)([A-Za-z_][A-Za-z0-9_]*\([\x20-\x7e]*\)\s*->\s*[\x20-\x7e]+)(?=\x00)"
)


class SchemaError(RuntimeError):
    """The installed wheel does not hold the schemas in the form that is known."""


def find_extension() -> Path | None:
    """The extension module's file in the installed wheel; None if vllm-ascend is not installed.

    Does not import vllm_ascend. Raises SchemaError if the package is there and the file is not.
    """
    found = importlib.util.find_spec(PACKAGE)
    if found is None or not found.submodule_search_locations:
        return None
    folders = [Path(location) for location in found.submodule_search_locations]
    for folder in folders:
        for suffix in importlib.machinery.EXTENSION_SUFFIXES:
            if (folder / f"{EXTENSION}{suffix}").is_file():
                return folder / f"{EXTENSION}{suffix}"
        # Not loaded, only read: a file for another Python holds the same strings.
        for path in sorted(folder.glob(f"{EXTENSION}*.so")):
            return path
    raise SchemaError(
        f"no {EXTENSION}*.so in {', '.join(map(str, folders))}: vllm-ascend is installed without "
        f"its extension module, whose operator schemas the emulated NPU needs. Install the wheel "
        f"of vllm-ascend, not its sources"
    )


def read_schemas(path: Path) -> dict[str, str]:
    """Operator name -> schema, in the order of the file.

    Raises SchemaError if there are none, if one does not parse, or if two of one name differ.
    """
    schemas: dict[str, str] = {}
    for match in _SCHEMA.finditer(path.read_bytes()):
        schema = " ".join(match.group(1).decode("ascii").split())
        name = schema[: schema.index("(")]
        _require_parses(schema, path)
        if schemas.setdefault(name, schema) != schema:
            raise SchemaError(
                f"two schemas of {name} in {path}: {schemas[name]!r} and {schema!r}; the emulated "
                f"NPU cannot tell which one is meant"
            )
    if not schemas:
        raise SchemaError(
            f"no operator schema in {path} ({path.stat().st_size} bytes): the file is not the "
            f"extension module of vllm-ascend, or keeps its schemas in a form that is not known. "
            f"Install vllm-ascend 0.23.0"
        )
    return schemas


def parameter_names(schema: str) -> list[str]:
    """The names of a schema's parameters, in order."""
    return [argument.name for argument in torch._C.parse_schema(schema).arguments]


def _require_parses(schema: str, path: Path) -> None:
    try:
        torch._C.parse_schema(schema)
    except RuntimeError as error:
        raise SchemaError(
            f"{path} holds what looks like an operator schema and is none: {schema!r} ({error})"
        ) from error

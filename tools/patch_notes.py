# SPDX-License-Identifier: Apache-2.0
"""What records of replaced code are for, from mkv_ascend/adapters/patches.toml."""

from __future__ import annotations

import functools
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # pytest brings it

FILE = Path(__file__).resolve().parents[1] / "mkv_ascend" / "adapters" / "patches.toml"
NOT_REPORTED = "not reported"


@dataclass(frozen=True)
class Notes:
    """See the head of the file for each field."""

    why: str
    until: str
    upstream: tuple[str, ...]
    tests: tuple[str, ...]
    stock: str = ""
    writes: tuple[str, ...] = ()


@functools.cache
def read() -> dict[str, dict[str, Any]]:
    """Name of a record -> its table."""
    tables: dict[str, dict[str, Any]] = tomllib.loads(FILE.read_text(encoding="utf-8"))
    return tables


def notes(name: str, folder: str) -> Notes:
    """What there is of a record that stands in an adapter's folder.

    Raises:
        ValueError: nothing is written of it, or not what must be.
    """
    table = read().get(name)
    if table is None:
        raise ValueError(f"{FILE.name} has no table {name!r}: say why it is replaced")
    own = {key: value for key, value in table.items() if not isinstance(value, dict)}
    given = {**own, **table.get(folder, {})}
    if given.get("upstream") == NOT_REPORTED:
        given["upstream"] = ()
    values: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value for key, value in given.items()
    }
    try:
        return Notes(**values)
    except TypeError as error:
        raise ValueError(f"{FILE.name}, {name!r}: {error}") from None

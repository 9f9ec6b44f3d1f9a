# SPDX-License-Identifier: Apache-2.0
"""Reading a JSON object of a model's folder: a mapping, or one sentence."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


class ConfigFileError(ValueError):
    """A file that cannot be read, or holds what no model can have."""


def read_object(path: Path, most_bytes: int) -> dict[str, Any] | None:
    """The JSON object of a file; None where there is no such file, or no file can have its name.

    Raises ConfigFileError when it cannot be read, or has more than ``most_bytes``.
    """
    # Of a name that is too long, pathlib raises an error.
    if not os.path.isfile(path):
        return None
    try:
        size = path.stat().st_size
        if size > most_bytes:
            raise ConfigFileError(f"{path} has {size} bytes, which no {path.name} has")
        values = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigFileError(f"{path} cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise ConfigFileError(f"{path} is not UTF-8: {error}") from None
    except RecursionError:
        raise ConfigFileError(f"{path} is nested too deeply") from None
    except ValueError as error:
        if isinstance(error, ConfigFileError):
            raise
        raise ConfigFileError(f"{path} is not JSON: {error}") from None
    if not isinstance(values, dict):
        raise ConfigFileError(f"{path} is not a JSON object")
    return values

# SPDX-License-Identifier: Apache-2.0
"""Files of a checkpoint that do something when they are read carelessly."""

from __future__ import annotations

import os
from pathlib import Path

CONFIG = Path(__file__).resolve().parents[1] / "data" / "configs" / "Llama-3.1-8B" / "config.json"


class WritesAFile:
    """A pickle that makes a folder when it is loaded."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self.path),)

# SPDX-License-Identifier: Apache-2.0
"""Models whose config.json files checks read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.mistaken_models import CHANGED

CONFIGS = Path(__file__).resolve().parents[2] / "data" / "configs"


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Name -> folder, of published models and changed ones."""
    folders = {path.parent.name: str(path.parent) for path in CONFIGS.glob("*/config.json")}
    for name, (base, changes) in CHANGED.items():
        folder = tmp_path_factory.mktemp("models") / name
        folder.mkdir()
        values = json.loads((CONFIGS / base / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**values, **changes}))
        folders[name] = str(folder)
    return folders

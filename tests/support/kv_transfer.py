# SPDX-License-Identifier: Apache-2.0
"""How an engine is asked to send the caches of prompts to another one, or to get them."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def transfer(folder: Path, role: str) -> dict[str, Any]:
    """``kv_transfer_config`` of the connector of the tests, by files in ``folder``."""
    return {
        "kv_connector": "FileConnector",
        "kv_connector_module_path": "tests.emulated.kv_transfer.file_connector",
        "kv_role": role,
        "kv_connector_extra_config": {"shared_storage_path": str(folder)},
    }

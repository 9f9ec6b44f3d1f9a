# SPDX-License-Identifier: Apache-2.0
"""Connectors that keep blocks in host memory, where they cannot take the caches of a host."""

from __future__ import annotations

import json

from tests.support import hosts
from tests.support.mistake import LLAMA, one

KV_CONNECTOR = "kv-connector"
TRANSFER = "--kv-transfer-config"


def connector(name: str, **extra: object) -> dict[str, object]:
    """One connector that sends and receives."""
    return {"kv_connector": name, "kv_role": "kv_both", **extra}


SEVERAL = connector(
    "MultiConnector",
    kv_connector_extra_config={"connectors": [connector("OffloadingConnector")]},
)
OF_VLLM = (
    one("offloading", KV_CONNECTOR, LLAMA, "--kv-offloading-size", "1"),
    one("offloading inside of several", KV_CONNECTOR, LLAMA, TRANSFER, json.dumps(SEVERAL)),
)
"""With vLLM's own worker, which takes one tensor per layer."""
OF_GROUPS = (
    one(
        "offloading of several groups",
        KV_CONNECTOR,
        *("{gemma-3-1b}", "--max-model-len", "4096"),
        *(TRANSFER, json.dumps(connector("SimpleCPUOffloadConnector"))),
        says="OffloadingConnector or AscendStoreConnector",
    ),
)
"""Where the other offload takes one KV group alone."""
OFFLOADING = OF_GROUPS if hosts.ADAPTER.RULES.offloads_split_caches else OF_VLLM

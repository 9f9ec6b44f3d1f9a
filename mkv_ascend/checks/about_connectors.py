# SPDX-License-Identifier: Apache-2.0
"""KV connectors that cannot take the caches of these models."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from mkv_ascend import host_versions
from mkv_ascend.checks.facts import ServeFacts
from mkv_ascend.checks.refusal import Refusal

__all__ = ["CHECKS", "of_groups", "of_states"]

OFFLOADING = "OffloadingConnector"
SIMPLE_OFFLOAD = "SimpleCPUOffloadConnector"


def offloading(facts: ServeFacts) -> Iterator[Refusal]:
    """vLLM's OffloadingConnector, which takes one tensor per layer where the host has no other
    worker for it."""
    if facts.rules is not None and facts.rules.offloads_split_caches:
        return
    if OFFLOADING in _asked(facts):
        yield Refusal(
            "kv-connector",
            f"{OFFLOADING} is asked for (--kv-transfer-config or --kv-offloading-size): it "
            "takes one tensor per layer, and caches on an Ascend NPU are a tuple of tensors",
            SIMPLE_OFFLOAD,
            "keep --kv-offloading-size and set VLLM_USE_SIMPLE_KV_OFFLOAD=1",
        )


def simple_offload(facts: ServeFacts) -> Iterator[Refusal]:
    """vLLM's SimpleCPUOffloadConnector beside what the adapters refuse it, behind all weights.

    Each adapter's ``kv_cache/kv_transfer.py`` says the same of the groups that it has.
    """
    if SIMPLE_OFFLOAD not in _asked(facts) or facts.rules is None:
        return
    models = (facts.target, *([] if facts.draft is None else [facts.draft]))
    groups = facts.groups or 0
    if facts.rules.offload_takes_one_group and groups > 1:
        yield of_groups(groups)
    if not facts.rules.offload_takes_one_group and any(model.recurrent for model in models):
        yield of_states()


def of_groups(groups: int) -> Refusal:
    """That connector over several KV groups."""
    return Refusal(
        "kv-connector",
        f"{SIMPLE_OFFLOAD} is asked for, and the layers need {groups} KV groups: it asks for the "
        f"block size of each, which {host_versions.vllm_ascend()} does not tell",
        f"models whose layers are one KV group, {OFFLOADING} or AscendStoreConnector",
        f"choose {OFFLOADING} (for --kv-offloading-size leave VLLM_USE_SIMPLE_KV_OFFLOAD out)",
    )


def of_states() -> Refusal:
    """That connector beside recurrent states."""
    return Refusal(
        "kv-connector",
        f"{SIMPLE_OFFLOAD} is asked for, and there are layers with states: it keeps one tensor of "
        "each allocation, and vllm-ascend puts states, keys and values in one",
        "RecomputeCPUOffloadConnector",
        "choose that one",
    )


def _asked(facts: ServeFacts) -> set[str]:
    """Names of the connectors that vLLM would make."""
    transfer: Any = facts.engine.get("kv_transfer_config") or {}
    found = _names(transfer) if isinstance(transfer, dict) else set()
    offloads = facts.engine.get("kv_offloading_size") is not None
    if offloads and facts.engine.get("kv_offloading_backend", "native") == "native":
        simple = os.environ.get("VLLM_USE_SIMPLE_KV_OFFLOAD", "0").lower() in ("1", "true")
        found.add(SIMPLE_OFFLOAD if simple else OFFLOADING)
    return found


def _names(connector: dict[str, Any], depth: int = 0) -> set[str]:
    """The name of a connector, and of those in a MultiConnector."""
    found = {str(connector.get("kv_connector"))}
    extra = connector.get("kv_connector_extra_config")
    inner = extra.get("connectors") if isinstance(extra, dict) and depth < 5 else None
    for child in inner if isinstance(inner, list) else ():
        if isinstance(child, dict):
            found |= _names(child, depth + 1)
    return found


CHECKS = (offloading, simple_offload)

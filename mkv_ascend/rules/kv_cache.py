# SPDX-License-Identifier: Apache-2.0
"""Blocks, and KV connectors that cannot take the caches of these models."""

from __future__ import annotations

from collections.abc import Iterator

from mkv_ascend import host_versions
from mkv_ascend.rules.facts import Facts
from mkv_ascend.rules.refusal import Refusal, Rule

KERNEL_BLOCK = 128
"""Tokens of a block where vllm-ascend is not told otherwise, and of a block of its kernels."""
OFFLOADING = "OffloadingConnector"
SIMPLE_OFFLOAD = "SimpleCPUOffloadConnector"


class ConnectorError(ValueError):
    """A KV connector that cannot take the caches: what was asked, why not, what is possible."""


def block_size(facts: Facts) -> Iterator[Refusal]:
    """Blocks that kernels do not divide."""
    asked, target = facts.block_size, facts.target
    # Beside states smaller blocks are enlarged, to those of kernels at least.
    least = KERNEL_BLOCK if target.attends_beside_states else 0
    if target.is_compressed or asked <= least or not asked % KERNEL_BLOCK:
        return
    yield Refusal(
        "block-size",
        f"--block-size is {asked}, which kernel blocks of {KERNEL_BLOCK} tokens do not divide",
        f"multiples of {KERNEL_BLOCK}",
        f"write --block-size {KERNEL_BLOCK}, or leave it out",
    )


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


def states_with_offload(facts: Facts) -> Iterator[Refusal]:
    """vLLM's SimpleCPUOffloadConnector beside states, which adapters refuse behind all weights."""
    if SIMPLE_OFFLOAD not in facts.connectors or facts.host.offload_takes_one_group:
        return
    if any(model.recurrent for model in facts.models):
        yield of_states()


OFFLOADING_OF_TENSORS = Rule(
    "kv-connector",
    lambda facts: OFFLOADING in facts.connectors and not facts.host.offloads_split_caches,
    f"{OFFLOADING} is asked for (--kv-transfer-config or --kv-offloading-size): it takes one "
    "tensor per layer, and caches on an Ascend NPU are a tuple of tensors",
    SIMPLE_OFFLOAD,
    "keep --kv-offloading-size and set VLLM_USE_SIMPLE_KV_OFFLOAD=1",
)
"""vLLM's own worker, where the host has no other for it."""


def drafts_with_transfer(facts: Facts) -> Iterator[Refusal]:
    """A draft model beside DeepSeek-V4 and a KV connector, which leaves the caches to vllm-ascend.

    Its own arrangement of DeepSeek-V4's caches takes no layers of another model.
    """
    speculation, draft = facts.speculation, facts.draft
    if facts.host.plans_compressed or not facts.target.is_compressed:
        return
    if speculation is None or draft is None or speculation.method != "draft_model":
        return
    if facts.has_transfer or facts.has_offloading:
        words = "--kv-transfer-config" if facts.has_transfer else "--kv-offloading-size"
        yield Refusal(
            "draft-caches",
            f"the draft {draft.name} beside {facts.target.model_type} with {words}, with which "
            f"{host_versions.vllm_ascend()} arranges the caches itself, without layers of "
            "other models",
            "the target's own MTP layer (method mtp), ngram, or no speculation with it",
            f"choose one of these, or leave {words} out",
        )


CHECKS = (
    block_size,
    OFFLOADING_OF_TENSORS,
    states_with_offload,
    drafts_with_transfer,
)

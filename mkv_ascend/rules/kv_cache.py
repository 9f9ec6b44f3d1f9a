# SPDX-License-Identifier: Apache-2.0
"""Memory for KV caches, their blocks, and KV connectors that cannot take those of these models."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from mkv_ascend import host_versions
from mkv_ascend.layout.component import counted_in
from mkv_ascend.layout.planning import ServingPlan
from mkv_ascend.rules.facts import Facts
from mkv_ascend.rules.refusal import Refusal, Rule

KERNEL_BLOCK = 128
"""Tokens of a block where vllm-ascend is not told otherwise, and of a block of its kernels."""
OFFLOADING = "OffloadingConnector"
SIMPLE_OFFLOAD = "SimpleCPUOffloadConnector"


class ConnectorError(ValueError):
    """A KV connector that cannot take the caches: what was asked, why not, what is possible."""


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


def _states_with_offload(facts: Facts) -> Iterator[Refusal]:
    """vLLM's SimpleCPUOffloadConnector beside states, which adapters refuse behind all weights."""
    asked = SIMPLE_OFFLOAD in facts.connectors and not facts.host.offload_takes_one_group
    if asked and any(model.recurrent for model in facts.models):
        yield of_states()


@dataclass(frozen=True)
class Memory:
    """The memory of one device, in bytes; of the tightest one where they differ.

    ``device``: None where it is not known. ``share``: of it that an engine takes
    (``--gpu-memory-utilization``). ``given``: ``--kv-cache-memory-bytes``, 0 where vLLM measures.
    ``blocks``: ``--num-gpu-blocks-override``, 0 without. ``target``, ``draft``: of weights.
    ``activations``: of the largest step, an estimate. ``ranks``: over which weights are split.
    """

    device: int | None
    share: float
    given: int
    blocks: int
    target: int
    draft: int
    activations: int
    ranks: int

    @property
    def weights(self) -> int:
        """Bytes of the weights of both models."""
        return self.target + self.draft

    @property
    def room(self) -> int | None:
        """Bytes that an engine takes of the device; None where that is not known."""
        return None if self.device is None else int(self.device * self.share)

    @property
    def most(self) -> int | None:
        """Bytes for KV caches, at most: what weights leave."""
        if self.given:
            return self.given
        return None if self.room is None else max(0, self.room - self.weights)

    @property
    def expected(self) -> int | None:
        """The same less what the largest step is estimated to take."""
        if self.given or self.most is None:
            return self.most
        return max(0, self.most - self.activations)

    @property
    def basis(self) -> str:
        """How that is known."""
        if self.given:
            return "--kv-cache-memory-bytes"
        return (
            f"{_gib(self.room or 0)} of a device less {_gib(self.weights)} of weights and about "
            f"{_gib(self.activations)} of activations"
        )


def weights_over_device(memory: Memory) -> Iterator[Refusal]:
    """Weights alone that no device holds."""
    if memory.device is None or memory.room is None:
        return
    room = memory.device if memory.given else memory.room
    if memory.weights <= room:
        return
    ranks = memory.ranks * math.ceil(memory.weights / room)
    enough = 1 << (ranks - 1).bit_length()
    yield Refusal(
        "memory",
        f"the weights take {_gib(memory.weights)} on each of {memory.ranks} ranks (target "
        f"{_gib(memory.target)}, draft {_gib(memory.draft)}), and a device has {_gib(room)} for "
        "weights, activations and caches",
        f"about {enough} ranks or more, or weights of fewer bits",
        f"write --tensor-parallel-size {enough} (experts: --enable-expert-parallel), or choose "
        "quantised weights",
    )


def known_blocks(memory: Memory, plan: ServingPlan) -> tuple[int, str] | None:
    """Blocks that there will be, or at most so many, and how that is known."""
    if memory.blocks:
        return memory.blocks, f"--num-gpu-blocks-override gives {memory.blocks}"
    if memory.most is None:
        return None
    blocks = plan.num_blocks(memory.most)
    if memory.given:
        return blocks, f"{memory.given / 2**20:.1f} MiB (--kv-cache-memory-bytes) hold {blocks}"
    held = f"{memory.most / 2**20:.1f} MiB, what {_gib(memory.weights)} of weights leave,"
    return blocks, f"{held} hold {blocks}"


def request_over_device(memory: Memory, plan: ServingPlan) -> Iterator[Refusal]:
    """Memory that cannot hold one request: the scheduler would wait for blocks for ever."""
    known = known_blocks(memory, plan)
    if known is None or plan.refusal(known[0]) is None:
        return
    needed = sum(plan.admission_pages) + 1
    tokens, block = plan.inputs.request.tokens, plan.plan.bytes_per_block
    counted = counted_in(plan.plan.shapes)
    shorter = plan.shortened(known[0])
    fits = 0 if shorter is None else shorter.inputs.request.tokens
    length = f"requests of {fits} tokens (--max-model-len), or " if fits else ""
    yield Refusal(
        "memory",
        f"one request of {tokens} tokens needs {needed} {counted}s of {block} bytes "
        f"({needed * block / 2**20:.1f} MiB) in {len(plan.grouping.groups)} KV groups, and "
        f"{known[1]}",
        f"{length}{needed * block / 2**20:.1f} MiB or more for KV caches",
        "lower --max-model-len, or give more memory (--kv-cache-memory-bytes, "
        "--gpu-memory-utilization, more ranks)",
    )


def _gib(size: int) -> str:
    return f"{size / 2**30:.1f} GiB"


CHECKS = (
    # Beside states smaller blocks are enlarged, to those of kernels at least.
    Rule(
        "block-size",
        lambda facts: (
            not facts.target.is_compressed
            and facts.block_size > (KERNEL_BLOCK if facts.target.attends_beside_states else 0)
            and facts.block_size % KERNEL_BLOCK
        ),
        "--block-size is {facts.block_size}, which kernel blocks of "
        f"{KERNEL_BLOCK} tokens do not divide",
        f"multiples of {KERNEL_BLOCK}",
        f"write --block-size {KERNEL_BLOCK}, or leave it out",
    ),
    # vLLM's own worker, where the host has no other for it.
    Rule(
        "kv-connector",
        lambda facts: OFFLOADING in facts.connectors and not facts.host.offloads_split_caches,
        f"{OFFLOADING} is asked for (--kv-transfer-config or --kv-offloading-size): it takes one "
        "tensor per layer, and caches on an Ascend NPU are a tuple of tensors",
        SIMPLE_OFFLOAD,
        "keep --kv-offloading-size and set VLLM_USE_SIMPLE_KV_OFFLOAD=1",
    ),
    _states_with_offload,
    # With a KV connector caches are left to vllm-ascend, whose own arrangement of DeepSeek-V4's
    # takes no layers of another model.
    Rule(
        "draft-caches",
        lambda facts: (
            facts.target.is_compressed
            and not facts.host.plans_compressed
            and facts.method == "draft_model"
            and facts.draft is not None
            and facts.transfer_option
            and {"option": facts.transfer_option}
        ),
        "the draft {facts.draft.name} beside {facts.target.model_type} with {option}, with which "
        "{ascend} arranges the caches itself, without layers of other models",
        "the target's own MTP layer (method mtp), ngram, or no speculation with it",
        "choose one of these, or leave {option} out",
    ),
)

# SPDX-License-Identifier: Apache-2.0
"""What grouping has to know of a layer, and how many blocks one request holds in it.

Two layers can share a block table exactly when they hold the same blocks at every moment. That is
so when their ``Retention`` and their block size are equal. The formulas are those by which vLLM
admits requests (``vllm/v1/kv_cache_interface.py``, ``max_memory_usage_bytes`` of each spec), so
that a plan counts what the scheduler will take.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from mkv_ascend.layout.component import ROW_ALIGNMENT
from mkv_ascend.layout.kind import Kind, Role, Word


class RetentionKind(Word):
    ALL = "all"
    """Every token, from the first to the last."""
    WINDOW = "window"
    """The last ``extent`` tokens; blocks that fall out of the window are given back."""
    CHUNK = "chunk"
    """The tokens of the current chunk of ``extent`` tokens."""
    STATE = "state"
    """No tokens: ``extent`` blocks with one state each, whatever the length."""
    ENCODER = "encoder"
    """The ``extent`` tokens of the encoder."""


@dataclass(frozen=True)
class Request:
    """The request that a plan is measured with.

    ``tokens``: its length. ``tokens_per_step``: how many of them one step may add while the tokens
    before are still held (1 + K with K draft tokens in decode; the scheduler's
    ``max_num_batched_tokens`` at admission).
    """

    tokens: int
    tokens_per_step: int = 1


@dataclass(frozen=True)
class Retention:
    """What one request holds in a layer; layers with equal retentions can share a block table.

    ``extent``: tokens of the window, chunk or encoder, or number of states; 0 for ``ALL``.
    ``tokens_per_row``: tokens that one row of the cache stands for (DeepSeek-V4's compression).
    ``extra_blocks``: blocks beyond those for the tokens (states of speculative tokens).
    ``asked_blocks``: that must be free beside these in each step, though they are never taken.
    """

    kind: RetentionKind
    extent: int = 0
    tokens_per_row: int = 1
    extra_blocks: int = 0
    asked_blocks: int = 0

    def tokens_of_block(self, block_size: int) -> int:
        """Tokens that one block of ``block_size`` rows stands for."""
        return block_size * self.tokens_per_row

    def blocks(self, block_size: int, request: Request) -> int:
        """Most blocks of ``block_size`` rows that ``request`` holds at one time."""
        if self.kind is RetentionKind.STATE:
            return self.extent + self.extra_blocks
        held = self.extent
        if self.kind is RetentionKind.ALL:
            held = request.tokens
        elif self.kind is RetentionKind.CHUNK:
            held = min(self.extent + request.tokens_per_step, request.tokens)
        elif self.kind is RetentionKind.WINDOW:
            held = min(self.extent - 1 + request.tokens_per_step, request.tokens)
        # A window need not start at the beginning of a block.
        more = self.extra_blocks + (self.kind is RetentionKind.WINDOW)
        return -(-held // self.tokens_of_block(block_size)) + more


@dataclass(frozen=True)
class LayerRequirements:
    """One layer, as grouping sees it.

    ``row_bytes``: bytes per token of each component that grows with the block size (k and v, or
    latent and rope). ``state_bytes``: bytes per block of each component that does not (conv, ssm).
    ``block_sizes``: every block size, in tokens, that the layer's kernels accept, the layer's own
    first. ``takes_strides``: the backend's operators accept pages with bytes of other layers
    between them, so that storage may be ``PAGED``. ``is_packed``: they accept any stride, so that
    storage may be ``PACKED``. ``kernel_block``: rows of the blocks that the
    kernels take, None where they take the whole; one block table serves one such size. ``table``:
    layers of unequal ``table`` never share a block table, whatever they hold.
    """

    name: str
    role: Role
    kind: Kind
    retention: Retention
    block_sizes: tuple[int, ...]
    row_bytes: tuple[int, ...] = ()
    state_bytes: tuple[int, ...] = ()
    takes_strides: bool = False
    kernel_block: int | None = None
    table: str = ""
    is_packed: bool = False

    @property
    def block_size(self) -> int:
        """The layer's own block size, in tokens."""
        return self.block_sizes[0]

    def component_bytes(self, block_size: int) -> tuple[int, ...]:
        """Bytes of each component in one page of ``block_size`` tokens."""
        return tuple(row * block_size for row in self.row_bytes) + self.state_bytes

    def page_bytes(self, block_size: int) -> int:
        """Bytes of one page of ``block_size`` tokens, without padding."""
        return sum(self.component_bytes(block_size))

    def row_unit(self, block_size: int) -> int:
        """Bytes that a block of packed pages is a multiple of: its kernel blocks start aligned."""
        splits = max(1, block_size // self.kernel_block) if self.kernel_block else 1
        return ROW_ALIGNMENT * splits

    def sizes_in_planes(self, block_size: int) -> tuple[int, ...]:
        """Bytes of a block of ``block_size`` tokens in each plane that the layer takes.

        A page is one. Packed pages have each component aligned in each kernel block.
        """
        parts = self.component_bytes(block_size)
        if self.is_packed:
            unit = self.row_unit(block_size)
            return tuple(-(-part // unit) * unit for part in parts)
        return (sum(parts),) if self.takes_strides else parts

    def needed_bytes(self, request: Request) -> int:
        """Bytes of the blocks that ``request`` holds in this layer, at the layer's own block size.

        Nothing of another layer is counted in: the sum over all layers is the ideal that a
        grouping is measured by.
        """
        return self.retention.blocks(self.block_size, request) * self.page_bytes(self.block_size)


def block_of_kernels(own: int, kernel_block_sizes: Iterable[int]) -> int:
    """``own``, or the least multiple of it that one of the kernel blocks divides, in tokens."""
    return min(math.lcm(own, size) for size in kernel_block_sizes)


def block_size_choices(own: int, kernel_block_size: int, largest: int) -> tuple[int, ...]:
    """``own``, then the kernel block times 1, 2, 4, ... up to ``largest``.

    Powers of two only: their least common multiple, to which the scheduler rounds prefix hits, is
    then never more than the largest of them.
    """
    if own % kernel_block_size:
        raise ValueError(
            f"block size {own} is not a multiple of the kernel block size {kernel_block_size}; "
            f"choose a multiple of {kernel_block_size}"
        )
    doublings = (largest // kernel_block_size).bit_length()
    sizes = (kernel_block_size << doubling for doubling in range(doublings))
    return (own, *(size for size in sizes if size != own))

# SPDX-License-Identifier: Apache-2.0
"""What grouping has to know of a layer: plain facts, without a spec class of vLLM."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from mkv_ascend.layout.kind import Kind, Role
from mkv_ascend.layout.placement import ROW_ALIGNMENT
from mkv_ascend.layout.retention import Request, Retention


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

    def __post_init__(self) -> None:
        if not self.block_sizes or min(self.block_sizes) < 1:
            raise ValueError(
                f"layer {self.name}: block_sizes is {self.block_sizes}; at least one positive "
                "block size is needed, the layer's own first"
            )
        components = self.row_bytes + self.state_bytes
        if not components or min(components) < 1:
            raise ValueError(
                f"layer {self.name}: row_bytes {self.row_bytes} and state_bytes "
                f"{self.state_bytes} must name at least one component, each of 1 byte or more"
            )

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
        return ROW_ALIGNMENT * self._kernel_splits(block_size)

    def sizes_in_planes(self, block_size: int) -> tuple[int, ...]:
        """Bytes of a block of ``block_size`` tokens in each plane that the layer takes.

        A page is one. Packed pages have each component aligned in each kernel block.
        """
        parts = self.component_bytes(block_size)
        if self.is_packed:
            unit = self.row_unit(block_size)
            return tuple(-(-part // unit) * unit for part in parts)
        return (sum(parts),) if self.takes_strides else parts

    def _kernel_splits(self, block_size: int) -> int:
        return max(1, block_size // self.kernel_block) if self.kernel_block else 1

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
    choices = [own]
    size = kernel_block_size
    while size <= largest:
        if size != own:
            choices.append(size)
        size *= 2
    return tuple(choices)

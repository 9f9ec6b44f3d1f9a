# SPDX-License-Identifier: Apache-2.0
"""What one layer keeps for one block: components, their sizes, and how they may lie in memory.

And how blocks of a KV group lie in the pages that groups share. Everything is an exact integer
number of bytes. Dtypes are named by string, as torch prints them without ``torch.``, so that a
layout can be made, compared and printed without torch.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from mkv_ascend.layout.kind import Kind, Role, Word

DTYPE_BYTES = {
    **dict.fromkeys(("int8", "uint8", "float8_e4m3fn", "float8_e5m2"), 1),
    **dict.fromkeys(("bfloat16", "float16", "int16"), 2),
    **dict.fromkeys(("float32", "int32"), 4),
    **dict.fromkeys(("float64", "int64"), 8),
}
ROW_ALIGNMENT = 32
"""Bytes; components of packed pages start at multiples: Ascend vector cores move 32 at a time."""


class LayoutError(ValueError):
    """A layout or plan that cannot be: the message has the numbers and what to change."""


def dtype_bytes(dtype: str) -> int:
    """Bytes of one element of ``dtype``; LayoutError when it is not known."""
    if dtype not in DTYPE_BYTES:
        known = ", ".join(DTYPE_BYTES)
        raise LayoutError(f"dtype {dtype!r} is not known; known: {known}")
    return DTYPE_BYTES[dtype]


def exact_quotient(dividend: int, divisor: int, what: str) -> int:
    """``dividend / divisor``; LayoutError with both numbers when something would be left over."""
    if divisor <= 0 or dividend % divisor:
        raise LayoutError(f"{what}: {dividend} is not a multiple of {divisor}")
    return dividend // divisor


class Storage(Word):
    """How the components of a layer, or of the layers of a pool, lie in memory."""

    SPLIT = "split"
    """A buffer each, contiguous over all blocks."""
    PAGED = "paged"
    """One buffer, page after page; the operators must take strides."""
    PACKED = "packed"
    """One buffer with a row for each block, in which the pages of a group lie one behind the other;
    the operators must take any stride between blocks."""

    @property
    def is_strided(self) -> bool:
        """Whether a block of a component is not behind the block before it."""
        return self in (Storage.PAGED, Storage.PACKED)


class Container(Word):
    TUPLE = "tuple"
    LIST = "list"
    TENSOR = "tensor"


@dataclass(frozen=True)
class PageShape:
    """How the blocks of a group lie in a page.

    ``per_stretch``: blocks to a stretch of a plane (k). ``stretches``: planes of a component (S).
    """

    per_stretch: int = 1
    stretches: int = 1

    @property
    def blocks(self) -> int:
        return self.per_stretch * self.stretches

    def pages(self, blocks: int) -> int:
        return -(-blocks // self.blocks)

    def share(self, blocks: int) -> float:
        """Pages of many requests with so many blocks each, by request: they fill each other's."""
        return blocks / self.blocks

    def ids(self, page: int, pages: int) -> list[int]:
        """The ids of the blocks in ``page`` of ``pages``, in ascending order.

        Block ``j`` of stretch ``s`` has the id ``(s * pages + page) * per_stretch + j``.
        """
        return [
            (stretch * pages + page) * self.per_stretch + place
            for stretch in range(self.stretches)
            for place in range(self.per_stretch)
        ]


ONE_BLOCK = PageShape()
"""A page is a block."""


def are_blocks(shapes: Iterable[PageShape]) -> bool:
    """Whether a page is one block of every group, whose ids are then those of pages."""
    return all(shape == ONE_BLOCK for shape in shapes)


def counted_in(shapes: Iterable[PageShape]) -> str:
    """What memory is counted in, for texts."""
    return "block" if are_blocks(shapes) else "page"


@dataclass(frozen=True)
class TokenExtent:
    """A row of ``heads x dim`` elements for each of ``tokens`` rows of a block."""

    tokens: int
    heads: int
    dim: int

    def __post_init__(self) -> None:
        if min(self.tokens, self.heads, self.dim) <= 0:
            raise LayoutError(
                f"tokens {self.tokens}, heads {self.heads}, dim {self.dim}: all must be positive"
            )


@dataclass(frozen=True)
class StateExtent:
    """A state of fixed shape, one for each block."""

    state_shape: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.state_shape or min(self.state_shape) <= 0:
            raise LayoutError(f"state shape {self.state_shape}: all axes must be positive")


@dataclass(frozen=True)
class Component:
    """One tensor of a layer's cache.

    ``replicas``: blocks of the tensor for each block of the manager (vllm-ascend keeps the
    indexer's keys of all context-parallel ranks: ``sfa_dcp_replicated_indexer_size``).
    ``overlay``: a second view of the page from its first byte on; needs PAGED storage and no bytes.
    """

    name: str
    dtype: str
    extent: TokenExtent | StateExtent
    replicas: int = 1
    overlay: bool = False

    def __post_init__(self) -> None:
        dtype_bytes(self.dtype)
        if self.replicas < 1:
            raise LayoutError(f"{self.name}: {self.replicas} replicas; at least 1")

    @property
    def item_bytes(self) -> int:
        return dtype_bytes(self.dtype)

    @property
    def bytes_per_block(self) -> int:
        """Bytes of one block of the manager, all replicas."""
        return math.prod(self.row_shape(None)) * self.item_bytes * self.replicas

    def rows_per_block(self, kernel_block: int | None) -> int:
        """Length of the tensor's first axis for one block of the manager."""
        if isinstance(self.extent, StateExtent) or kernel_block is None:
            return self.replicas
        what = f"{self.name}: tokens of a block by kernel block"
        return self.replicas * exact_quotient(self.extent.tokens, kernel_block, what)

    def row_shape(self, kernel_block: int | None) -> tuple[int, ...]:
        """The other axes of the tensor."""
        if isinstance(self.extent, StateExtent):
            return self.extent.state_shape
        return (kernel_block or self.extent.tokens, self.extent.heads, self.extent.dim)


def used_bytes(components: Iterable[Component]) -> int:
    """Bytes of one block in all of them."""
    return sum(part.bytes_per_block for part in components if not part.overlay)


@dataclass(frozen=True)
class LayerLayout:
    """The cache of one layer for one block, made by a recipe from the layer's own spec.

    ``storage``: SPLIT says that the operators need contiguous components; PAGED that
    they take pages one behind the other; PACKED that they take any stride. ``page_bytes``: all
    components, and in PAGED storage what the spec pads them to. ``tokens_per_block``: tokens of a
    request that one block stands for (compressed caches keep fewer rows). ``kernel_block``: rows of
    the backend's own block, None where it takes the whole.
    """

    layer: str
    role: Role
    kind: Kind
    components: tuple[Component, ...]
    storage: Storage
    page_bytes: int
    tokens_per_block: int
    kernel_block: int | None = None
    container: Container = Container.TUPLE

    def __post_init__(self) -> None:
        try:
            self._check()
        except LayoutError as error:
            raise LayoutError(f"layer {self.layer}: {error}") from None

    def _check(self) -> None:
        names = [component.name for component in self.components]
        if not names or len(set(names)) != len(names):
            raise LayoutError(f"components {names}: at least one, and each name once")
        if self.tokens_per_block <= 0:
            raise LayoutError(f"{self.tokens_per_block} tokens per block; must be positive")
        if self.used_bytes > self.page_bytes:
            raise LayoutError(
                f"its components need {self.used_bytes} bytes of a block, its page has "
                f"{self.page_bytes}; make the page larger"
            )
        if self.container is Container.TENSOR and len(self.components) != 1:
            raise LayoutError(f"components {names} in one tensor; use a tuple or a list")
        for component in self.components:
            component.rows_per_block(self.kernel_block)
            if component.overlay and self.storage is not Storage.PAGED:
                raise LayoutError(f"{component.name} overlays a page; storage must be PAGED")
            if component.replicas > 1 and self.storage.is_strided:
                raise LayoutError(f"{component.name} has replicas; it must be contiguous")
        if self.storage is Storage.PAGED:
            exact_quotient(self.page_bytes, self.kernel_splits, "page bytes by kernel blocks")

    @property
    def used_bytes(self) -> int:
        return used_bytes(self.components)

    @property
    def padding_bytes(self) -> int:
        """Bytes of the page that no component uses."""
        return self.page_bytes - self.used_bytes

    @property
    def kernel_splits(self) -> int:
        """Kernel blocks of one block, replicas not counted."""
        if self.kernel_block is None:
            return 1
        tokens = [p.extent.tokens for p in self.components if isinstance(p.extent, TokenExtent)]
        if not tokens or len(set(tokens)) != 1:
            raise LayoutError(f"kernel block {self.kernel_block} with rows {tokens} per component")
        return exact_quotient(tokens[0], self.kernel_block, "tokens of a block by kernel block")

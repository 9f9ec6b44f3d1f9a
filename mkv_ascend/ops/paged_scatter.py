# SPDX-License-Identifier: Apache-2.0
"""``paged_scatter``: rows of several components into paged caches, in one launch."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from mkv_ascend.ops import checks
from mkv_ascend.ops.registration import CustomOp, register

__all__ = ["MAXIMUM_COMPONENTS", "paged_scatter"]

NAME = "paged_scatter"
ARGUMENTS = "Tensor[] rows, Tensor slots, Tensor(a!)[] caches"
MAXIMUM_COMPONENTS = 4
"""As many as any layer keeps: their addresses and strides are passed to the kernel by value."""


def check(
    rows: Sequence[torch.Tensor], slots: torch.Tensor, caches: Sequence[torch.Tensor]
) -> None:
    """Refuse wrong dtypes, shapes, strides and devices; see ``paged_scatter``."""
    count = len(rows)
    checks.require(
        1 <= count <= MAXIMUM_COMPONENTS,
        NAME,
        f"rows holds {count} components; it must hold 1 to {MAXIMUM_COMPONENTS}",
    )
    checks.require(
        len(caches) == count, NAME, f"caches holds {len(caches)} tensors for {count} of rows"
    )
    checks.require_tensor(NAME, "slots", slots, (torch.int32,), (None,))
    named = [("slots", slots)]
    for index, (row, cache) in enumerate(zip(rows, caches, strict=True)):
        _check_component(f"rows[{index}]", row, f"caches[{index}]", cache, slots.shape[0])
        named += [(f"rows[{index}]", row), (f"caches[{index}]", cache)]
    checks.require_one_device(NAME, named)


def _check_component(
    row_name: str, row: torch.Tensor, cache_name: str, cache: torch.Tensor, tokens: int
) -> None:
    checks.require(
        cache.dim() >= 2,
        NAME,
        f"{cache_name} has the shape {tuple(cache.shape)}; it must be (blocks, block size, ...)",
    )
    wanted = (tokens, *cache.shape[2:])
    checks.require(
        tuple(row.shape) == wanted,
        NAME,
        f"{row_name} has the shape {tuple(row.shape)}; with slots {tokens} long and {cache_name} "
        f"{tuple(cache.shape)} it must be {wanted}",
    )
    checks.require(
        row.dtype == cache.dtype,
        NAME,
        f"{row_name} is {row.dtype} and {cache_name} {cache.dtype}; they must be the same: the op "
        "copies bytes",
    )
    checks.require_dense(NAME, row_name, row, 1, "one token's row")
    checks.require_dense(NAME, cache_name, cache, 2, "one token's row")


def reference(
    rows: Sequence[torch.Tensor], slots: torch.Tensor, caches: Sequence[torch.Tensor]
) -> None:
    """The op in plain torch operations; see ``paged_scatter``.

    Written with masks, not by selecting rows: how many rows have a slot is not known on the host.
    """
    for row, cache in zip(rows, caches, strict=True):
        num_blocks, block_size = cache.shape[:2]
        if row.numel() == 0 or cache.numel() == 0:
            continue
        block = torch.div(slots.to(torch.int64), block_size, rounding_mode="floor")
        offset = slots - block * block_size
        written = (slots >= 0) & (block < num_blocks)
        # A skipped row writes what its place holds after all others: the row of the token that
        # goes there, or else what is there now.
        block, offset = block.clamp(0, num_blocks - 1), offset.clamp(0, block_size - 1)
        first = torch.argmax(written.to(torch.int32))
        block = torch.where(written, block, block[first])
        offset = torch.where(written, offset, offset[first])
        shape = (-1, *(1 for _ in row.shape[1:]))
        values = torch.where(written.view(shape), row, row[first])
        values = torch.where(written.any(), values, cache[block, offset])
        cache.index_put_((block, offset), values)


_op = register(CustomOp(NAME, ARGUMENTS, check, reference))


def paged_scatter(
    rows: Sequence[torch.Tensor], slots: torch.Tensor, caches: Sequence[torch.Tensor]
) -> None:
    """Copy each token's row of each component to its slot.

    Slot s of a component is row ``s % block size`` of block ``s // block size``. Tokens with a slot
    below 0 or past the cache are skipped. Two tokens must not have one slot.

    Args:
        rows: 1 to 4 tensors [T, ...] of any dtype, a token's row dense; tokens may lie apart.
        slots: int32 [T], the same for all components.
        caches: out, tensors [blocks, block size, ...] with the dtype and inner shape of their rows,
            a token's row dense; blocks and the rows in them may lie apart, as in a pool shared
            page by page.

    Raises:
        ValueError: a wrong dtype, shape, stride or device, named by argument.
    """
    _op(list(rows), slots, list(caches))

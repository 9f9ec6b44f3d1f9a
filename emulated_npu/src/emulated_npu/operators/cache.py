# SPDX-License-Identifier: Apache-2.0
"""Writing tokens into paged caches and reading them back.

A slot is block id * block size + offset; slot -1 is padding and is skipped. A slot outside the
cache is an error here: hardware would write into another layer's memory.
"""

from __future__ import annotations

import torch

from emulated_npu.operators.attention_call import host_integers
from emulated_npu.operators.attention_paging import select_pages
from emulated_npu.operators.binding import Arguments
from emulated_npu.operators.cache_strides import require_blocks
from emulated_npu.operators.registry import OperatorArgumentError, operator
from emulated_npu.operators.requirements import (
    INTEGERS,
    require,
    require_contiguous,
    require_dtype,
    require_multiple,
    require_rank,
    require_same_dtype,
    require_shape,
)

PADDING_SLOT = -1


def write_slots(rows: torch.Tensor, cache: torch.Tensor, slots: torch.Tensor) -> None:
    """Write rows (tokens, ...) into cache (blocks, block size, ...) at slots (tokens,)."""
    num_blocks, block_size = cache.shape[:2]
    slots, used = check_slots(slots, num_blocks * block_size)
    rows = rows.reshape(-1, *cache.shape[2:])
    if used is not None:
        slots, rows = slots[used], rows[used]
    cache[slots // block_size, slots % block_size] = rows.to(cache.dtype)


def write_slots_fractal(rows: torch.Tensor, cache: torch.Tensor, slots: torch.Tensor) -> None:
    """As write_slots, for the NZ form of a cache: (blocks, features / c, block size, c).

    The features may have two axes, heads and parts of a head.
    """
    cache = cache.view(cache.shape[0], -1, *cache.shape[-2:])
    num_blocks, columns, block_size, width = cache.shape
    slots, used = check_slots(slots, num_blocks * block_size)
    rows = rows.reshape(-1, columns, width)
    if used is not None:
        slots, rows = slots[used], rows[used]
    cache[slots // block_size, :, slots % block_size] = rows.to(cache.dtype)


def check_slots(slots: torch.Tensor, num_slots: int) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Slots as int64 (tokens,), and which are no padding (None if all). Errors: out of range."""
    slots = slots.reshape(-1).long()
    if not slots.numel():
        return slots, None
    lowest, highest = (int(bound) for bound in slots.aminmax())
    if lowest < PADDING_SLOT or highest >= num_slots:
        outside = lowest if lowest < PADDING_SLOT else highest
        raise OperatorArgumentError(
            f"slot {outside} is outside the cache of {num_slots} slots; allowed: 0 to "
            f"{num_slots - 1}, and -1 for padding"
        )
    return slots, slots >= 0 if lowest < 0 else None


@operator(
    "_npu_reshape_and_cache",
    source="op-plugin test: test_atb_reshape_and_cache",
    limits="""caches (blocks, block size, heads, head size), contiguous, of the dtype of key and
    value; slot_indices int32, one for each token; slot -1 is skipped, any other slot outside the
    cache is an error.""",
    missing="NZ format of the caches",
    writes=("key_cache", "value_cache"),
)
def npu_reshape_and_cache(
    key: torch.Tensor,
    value: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    slot_indices: torch.Tensor,
) -> None:
    """Write key and value, (tokens, heads, head size), into the caches."""
    write_slots(key, key_cache, slot_indices)
    write_slots(value, value_cache, slot_indices)


@npu_reshape_and_cache.check
def _check_reshape_and_cache(
    key: torch.Tensor,
    value: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    slot_indices: torch.Tensor,
) -> None:
    require_dtype("slot_indices", slot_indices, (torch.int32,))
    require_same_dtype(key=key, key_cache=key_cache)
    require_same_dtype(value=value, value_cache=value_cache)
    for name, tensor, cache in (("key", key, key_cache), ("value", value, value_cache)):
        require_rank(f"{name}_cache", cache, 4)
        require_contiguous(f"{name}_cache", cache)
        require_shape(name, tensor, (slot_indices.numel(), *cache.shape[2:]))


@operator(
    "npu_scatter_pa_kv_cache",
    source="op-plugin docs: torch_npu.npu_scatter_pa_kv_cache",
    limits="""one dtype; key and value (tokens, heads, head size); slot_mapping int32 or int64;
    cache_mode PA_NZ: caches (blocks, heads * head size / c, block size, c), c = 16 (32 for 8-bit
    types), or with heads apart, as vllm-ascend 0.23.0 passes int8 (not documented); Norm: (blocks,
    block size, heads, head size); all contiguous, but for the distance of blocks in Norm where
    vllm-ascend documents it (0.30, "Non-Contiguous KV Cache"). Slot -1 is skipped, as in
    op-plugin's golden test; the documentation starts at 0.""",
    missing="compress_lens, compress_seq_offsets, seq_lens",
    writes=("key_cache", "value_cache"),
)
def npu_scatter_pa_kv_cache(
    key: torch.Tensor,
    value: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
    *,
    compress_lens: torch.Tensor | None = None,
    compress_seq_offsets: torch.Tensor | None = None,
    seq_lens: torch.Tensor | None = None,
    cache_mode: str | None = "PA_NZ",
) -> None:
    """Write key and value into the caches in the form that cache_mode names."""
    if not (compress_lens is None and compress_seq_offsets is None and seq_lens is None):
        raise NotImplementedError(
            "emulated NPU: npu_scatter_pa_kv_cache with compress_lens, compress_seq_offsets or "
            "seq_lens is not emulated; call it without"
        )
    write = write_slots_fractal if cache_mode == "PA_NZ" else write_slots
    write(key, key_cache, slot_mapping)
    write(value, value_cache, slot_mapping)


@npu_scatter_pa_kv_cache.check
def _check_scatter_pa(
    key: torch.Tensor,
    value: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
    cache_mode: str | None,
) -> None:
    require(
        cache_mode in (None, "Norm", "PA_NZ"),
        f"cache_mode is {cache_mode!r}; it must be None, 'Norm' or 'PA_NZ'",
    )
    require_same_dtype(key=key, value=value, key_cache=key_cache, value_cache=value_cache)
    require_dtype("slot_mapping", slot_mapping, INTEGERS)
    require_shape("slot_mapping", slot_mapping, (key.shape[0],))
    width = 32 if key.element_size() == 1 else 16
    for name, tensor, cache in (("key", key, key_cache), ("value", value, value_cache)):
        require_contiguous(name, tensor)
        require_rank(name, tensor, 3)
        features = tensor.shape[1] * tensor.shape[2]
        if cache_mode == "PA_NZ":
            require_contiguous(f"{name}_cache", cache)
            require_multiple(f"heads * head size of {name}", features, width)
            columns: tuple[int, ...] = (features // width,)
            if cache.dim() == 5:
                columns = (tensor.shape[1], tensor.shape[2] // width)
            require_shape(f"{name}_cache", cache, (None, *columns, None, width))
        else:
            require_shape(f"{name}_cache", cache, (None, None, *tensor.shape[1:]))
            require_blocks(f"{name}_cache", cache)


@operator(
    "npu_scatter_nd_update_",
    source="op-plugin docs: torch_npu.npu_scatter_nd_update_",
    limits="""float16, bfloat16, float32, bool, int8, int64; indices int32 or int64 of at least two
    dimensions; an index row that holds a -1 is skipped (vllm-ascend 0.23.0 passes padded slots;
    not documented); any other index outside is an error.""",
    writes=("input",),
)
def npu_scatter_nd_update_(
    input: torch.Tensor,  # the documented name
    indices: torch.Tensor,
    updates: torch.Tensor,
) -> torch.Tensor:
    """input[indices[i]] = updates[i], indices (..., depth), updates (..., rest of input)."""
    depth = indices.shape[-1]
    rows = indices.reshape(-1, depth).long()
    values = updates.reshape(-1, *input.shape[depth:])
    used = (rows >= 0).all(-1)
    for axis, column in enumerate(rows.unbind(-1)):
        check_slots(column, input.shape[axis])
    input[tuple(rows[used].unbind(-1))] = values[used]
    return input


@npu_scatter_nd_update_.check
def _check_scatter_nd(
    input: torch.Tensor,
    indices: torch.Tensor,
    updates: torch.Tensor,
) -> None:
    allowed = (
        torch.float32, torch.float16, torch.bool, torch.bfloat16, torch.int64, torch.int8
    )  # fmt: skip
    require_dtype("input", input, allowed)
    require_same_dtype(input=input, updates=updates)
    require_dtype("indices", indices, INTEGERS)
    require(
        indices.dim() >= 2 and indices.shape[-1] <= input.dim(),
        f"indices has shape {tuple(indices.shape)}; it must have two dimensions or more, the last "
        f"at most {input.dim()}",
    )
    require_shape("updates", updates, (*indices.shape[:-1], *input.shape[indices.shape[-1] :]))


@operator(
    "npu_paged_cache_load",
    namespace="atb",
    source="op-plugin test: test_atb_paged_cache_load",
    limits="""caches (blocks, block size, heads, head size), contiguous; block_table, context_lens
    and seq_starts int32; a start counts whole blocks, its remainder has no effect, as in
    op-plugin's golden test; key and value have the dtype of their cache.""",
    missing="cumulative context_lens, NZ format",
    writes=("key", "value"),
)
def npu_paged_cache_load(
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    block_table: torch.Tensor,
    context_lens: torch.Tensor,
    *,
    seq_starts: torch.Tensor | None = None,
    key: torch.Tensor | None = None,
    value: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Gather the cached tokens of each request, one after the other.

    context_lens (requests,): tokens to load; seq_starts (requests,): first token of each. Returns
    key and value, (tokens, heads, head size), which are written in place where they are given.
    """
    total = sum(host_integers(context_lens) or [])
    if key is None:
        key = key_cache.new_empty(total, *key_cache.shape[2:])
    if value is None:
        value = value_cache.new_empty(total, *value_cache.shape[2:])
    for cache, target in ((key_cache, key), (value_cache, value)):
        _gather(cache, target, block_table, context_lens, seq_starts)
    return key, value


def _gather(
    cache: torch.Tensor,
    target: torch.Tensor,
    block_table: torch.Tensor,
    context_lens: torch.Tensor,
    seq_starts: torch.Tensor | None,
) -> None:
    """Write the cached tokens of each request into the rows of target, one after the other."""
    lengths = host_integers(context_lens) or []
    starts = host_integers(seq_starts) or [0] * len(lengths)
    first_row = 0
    for table_row, length, start in zip(block_table, lengths, starts, strict=True):
        rows = slice(first_row, first_row + length)
        target[rows] = _load(cache, table_row, start, length).reshape(target[rows].shape)
        first_row = rows.stop


def _load(cache: torch.Tensor, table_row: torch.Tensor, start: int, length: int) -> torch.Tensor:
    block_size = cache.shape[1]
    first, last = start // block_size, start // block_size - (-length // block_size)
    if last > table_row.shape[0]:
        raise OperatorArgumentError(
            f"{length} tokens from {start} on reach block {last}; block_table has "
            f"{table_row.shape[0]} columns"
        )
    return select_pages(cache, table_row[first:last]).flatten(0, 1)[:length]


@npu_paged_cache_load.check
def _check_paged_cache_load(given: Arguments) -> None:
    require_dtype("block_table", given.block_table, (torch.int32,))
    require_rank("block_table", given.block_table, 2)
    require_dtype("context_lens", given.context_lens, (torch.int32,))
    require_shape("context_lens", given.context_lens, (given.block_table.shape[0],))
    if given.seq_starts is not None:
        require_dtype("seq_starts", given.seq_starts, (torch.int32,))
        require_shape("seq_starts", given.seq_starts, (given.block_table.shape[0],))
    for name, cache, target in (
        ("key", given.key_cache, given.key),
        ("value", given.value_cache, given.value),
    ):
        require_rank(f"{name}_cache", cache, 4)
        require_contiguous(f"{name}_cache", cache)
        if target is not None:
            require_same_dtype(**{name: target, f"{name}_cache": cache})
            require_contiguous(name, target)
            total = int(given.context_lens.sum())
            require(
                target.shape[0] >= total,
                f"{name} has {target.shape[0]} rows; context_lens sums to {total}",
            )


@operator(
    "npu_gather_pa_kv_cache",
    source="op-plugin test: test_npu_gather_pa_kv_cache",
    limits="""caches (blocks, block size, heads, head size), contiguous; block_tables, seq_lens and
    seq_offset int32 or int64; an offset counts whole blocks, as for npu_paged_cache_load, which
    vllm-ascend 0.23.0 calls in its place; key and value have the dtype of their cache.""",
    missing="is_seq_lens_cumsum, NZ format",
    writes=("key", "value"),
)
def npu_gather_pa_kv_cache(
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    block_tables: torch.Tensor,
    seq_lens: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    seq_offset: torch.Tensor | None = None,
    is_seq_lens_cumsum: bool = False,
) -> None:
    """Gather the cached tokens of each request into key and value, (tokens, heads, head size).

    seq_lens (requests,): tokens to load; seq_offset (requests,): first token of each.
    """
    if is_seq_lens_cumsum:
        raise NotImplementedError(
            "emulated NPU: npu_gather_pa_kv_cache with is_seq_lens_cumsum is not emulated; give "
            "the length of each request"
        )
    _gather(key_cache, key, block_tables, seq_lens, seq_offset)
    _gather(value_cache, value, block_tables, seq_lens, seq_offset)


@npu_gather_pa_kv_cache.check
def _check_gather_pa(given: Arguments) -> None:
    require_dtype("block_tables", given.block_tables, INTEGERS)
    require_rank("block_tables", given.block_tables, 2)
    requests = (given.block_tables.shape[0],)
    for name in ("seq_lens", "seq_offset"):
        tensor = getattr(given, name)
        if tensor is not None:
            require_dtype(name, tensor, INTEGERS)
            require_shape(name, tensor, requests)
            require_contiguous(name, tensor)
    total = int(given.seq_lens.sum())
    for name in ("key", "value"):
        cache, target = getattr(given, f"{name}_cache"), getattr(given, name)
        require_rank(f"{name}_cache", cache, 4)
        require_contiguous(f"{name}_cache", cache)
        require_same_dtype(**{name: target, f"{name}_cache": cache})
        require_contiguous(name, target)
        require_shape(name, target, (None, *cache.shape[2:]))
        require(
            target.shape[0] >= total,
            f"{name} has {target.shape[0]} rows; seq_lens sums to {total}",
        )

# SPDX-License-Identifier: Apache-2.0
"""Launches of the kernels with the arguments of their ops, on CPU tensors."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import torch

from mkv_ascend.ops.expand_inputs import ExpandInputs
from mkv_ascend.testing.ascendc_host import Output, Report
from tests.unit.ascend_kernels.kernels import library


def wide(tensor: torch.Tensor) -> int:
    return int(tensor.dtype == torch.int64)


def zero_blocks(
    block_ids: torch.Tensor,
    caches: Sequence[torch.Tensor],
    page_table: torch.Tensor,
    *,
    cores: int,
    seed: int = 0,
) -> Report:
    reachable = {f"caches[{index}]": Output(cache) for index, cache in enumerate(caches)}
    return library().launch(
        "mkv_ascend_zero_blocks", cores, None, block_ids, wide(block_ids),
        ctypes.c_int64(block_ids.shape[0]), page_table, ctypes.c_int64(len(caches)), seed=seed,
        reachable=reachable,
    )  # fmt: skip


ADDRESSES = (
    "token_ids", "positions", "rope_positions", "next_token_ids", "query_start_loc",
    "num_rejected", "num_requests", "group_table", "out_token_ids", "out_positions",
    "out_rope_positions", "rejected_mask", "masked_mask", "sample_indices", "hidden_rows",
    "out_query_start_loc", "lengths", "next_positions", "slots",
)  # fmt: skip
SIZES = (
    "num_rows", "num_tokens", "num_out_tokens", "num_groups", "table_rows", "num_axes", "sampled",
    "max_model_len", "rope_stride", "out_rope_stride", "slot_stride",
)  # fmt: skip
WORDS = (
    "shift", "padding_token_id", "parallel_token_id", "wide_token_ids", "wide_positions",
    "wide_rope_positions", "wide_next_token_ids", "wide_rejected", "wide_out_positions",
    "wide_out_rope_positions", "wide_next_positions",
)  # fmt: skip
INPUTS = frozenset(ADDRESSES[:8])


class ExpandArguments(ctypes.Structure):
    """``MkvExpandInputs``."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ADDRESSES),
        *((name, ctypes.c_int64) for name in SIZES),
        *((name, ctypes.c_int32) for name in WORDS),
    )

    @classmethod
    def of(cls, given: ExpandInputs) -> ExpandArguments:
        def stride(tensor: torch.Tensor | None) -> int:
            return 0 if tensor is None else tensor.stride(0)

        def is_wide(tensor: torch.Tensor | None) -> int:
            return 0 if tensor is None else wide(tensor)

        addresses = [getattr(given, name) for name in ADDRESSES]
        return cls(
            *(None if tensor is None else tensor.data_ptr() for tensor in addresses),
            given.next_token_ids.shape[0], given.token_ids.shape[0], given.out_token_ids.shape[0],
            len(given.block_tables), min(table.shape[0] for table in given.block_tables),
            0 if given.rope_positions is None else given.rope_positions.shape[0],
            given.sampled_per_request, given.max_model_len, stride(given.rope_positions),
            stride(given.out_rope_positions), stride(given.slots), int(given.shift),
            given.padding_token_id, given.parallel_token_id, wide(given.token_ids),
            wide(given.positions), is_wide(given.rope_positions), wide(given.next_token_ids),
            is_wide(given.num_rejected), wide(given.out_positions),
            is_wide(given.out_rope_positions), wide(given.next_positions),
        )  # fmt: skip


def expand_inputs(given: ExpandInputs, *, cores: int, seed: int = 0) -> Report:
    reachable: dict[str, Any] = {
        f"block_tables[{index}]": table for index, table in enumerate(given.block_tables)
    }
    for name in ADDRESSES:
        tensor = getattr(given, name)
        if tensor is not None:
            reachable[name] = tensor if name in INPUTS else Output(tensor)
    arguments = ExpandArguments.of(given)
    return library().launch(
        "mkv_ascend_expand_inputs", cores, None, ctypes.byref(arguments), seed=seed,
        reachable=reachable,
    )  # fmt: skip

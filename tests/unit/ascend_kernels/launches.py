# SPDX-License-Identifier: Apache-2.0
"""Launches of the kernels with the arguments of their ops, on CPU tensors."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Sequence
from typing import Any

import torch

from mkv_ascend.ops.expand_inputs import ExpandInputs
from mkv_ascend.ops.registration import arguments_of
from tests.support.ascendc_host import Output, Report
from tests.unit.ascend_kernels.kernels import FOLDER, library


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


WORDS = re.findall(
    r"\b(ADDRESS|SIZE|WORD|WIDE)\((\w+)\)", (FOLDER / "launchers.h").read_text("utf-8")
)
"""The kernel's arguments, from the list in the sources."""
TYPES = {
    "ADDRESS": ctypes.c_void_p, "SIZE": ctypes.c_int64, "WORD": ctypes.c_int32,
    "WIDE": ctypes.c_int32,
}  # fmt: skip
OUTPUTS = frozenset(re.findall(r"!\)\S* (\w+)", arguments_of(ExpandInputs)))


class ExpandArguments(ctypes.Structure):
    """``MkvExpandInputs``."""

    _fields_ = tuple(
        (f"wide_{name}" if kind == "WIDE" else name, TYPES[kind]) for kind, name in WORDS
    )

    @classmethod
    def of(cls, given: ExpandInputs) -> ExpandArguments:
        def stride(tensor: torch.Tensor | None) -> int:
            return 0 if tensor is None else tensor.stride(0)

        tensors = {kind: [name for one, name in WORDS if one == kind] for kind in TYPES}
        filled: dict[str, Any] = {
            name: tensor.data_ptr()
            for name in tensors["ADDRESS"]
            if (tensor := getattr(given, name)) is not None
        }
        filled |= {
            f"wide_{name}": wide(tensor)
            for name in tensors["WIDE"]
            if (tensor := getattr(given, name)) is not None
        }
        return cls(
            **filled, num_rows=given.next_token_ids.shape[0], num_tokens=given.token_ids.shape[0],
            num_out_tokens=given.out_token_ids.shape[0], num_groups=len(given.block_tables),
            table_rows=min(table.shape[0] for table in given.block_tables),
            num_axes=0 if given.rope_positions is None else given.rope_positions.shape[0],
            sampled=given.sampled_per_request, max_model_len=given.max_model_len,
            rope_stride=stride(given.rope_positions),
            out_rope_stride=stride(given.out_rope_positions), slot_stride=stride(given.slots),
            shift=int(given.shift), padding_token_id=given.padding_token_id,
            parallel_token_id=given.parallel_token_id,
        )  # fmt: skip


def expand_inputs(given: ExpandInputs, *, cores: int, seed: int = 0) -> Report:
    reachable: dict[str, Any] = {
        f"block_tables[{index}]": table for index, table in enumerate(given.block_tables)
    }
    for kind, name in WORDS:
        tensor = getattr(given, name, None)
        if kind == "ADDRESS" and tensor is not None:
            reachable[name] = Output(tensor) if name in OUTPUTS else tensor
    arguments = ExpandArguments.of(given)
    return library().launch(
        "mkv_ascend_expand_inputs", cores, None, ctypes.byref(arguments), seed=seed,
        reachable=reachable,
    )  # fmt: skip

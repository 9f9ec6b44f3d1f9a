# SPDX-License-Identifier: Apache-2.0
"""Functions in plain torch and numpy that run in the place of slow interpreted ones.

Each gives bit for bit what the interpreter gives (tests/emulated/device/test_stand_ins_of_kernels).
They stand at the boundary of a kernel or of one of its library functions, so the wrapper around the
kernel runs as it is, and its launches are counted as they are. A kernel's takes the kernel's
arguments by name, npu tensors as CPU tensors over the same memory, and writes where the kernel
writes; for arguments that it does not serve it returns NotImplemented, and the kernel is
interpreted.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import torch

from emulated_npu.triton_interpreter import rank_merging

Words = np.ndarray[Any, np.dtype[np.uint32]]


def rope(
    *,
    q_ptr: torch.Tensor,
    q_row_stride: int,
    k_ptr: torch.Tensor,
    k_row_stride: int,
    cos_ptr: torch.Tensor | None,
    cos_row_stride: int | None,
    sin_ptr: torch.Tensor | None,
    sin_row_stride: int | None,
    cos_sin_ptr: torch.Tensor | None,
    pos_ptr: torch.Tensor | None,
    num_tokens: int,
    n_qh: int,
    n_kh: int,
    hd: int,
    rope_dim: int,
    pad_rope_dim: int,
    IS_NEOX_STYLE: bool,  # noqa: N803 (names of the kernel)
    USE_COS_SIN: bool,  # noqa: N803
    **_others: Any,
) -> Any:
    """Turn the first ``rope_dim`` numbers of each head of q and k, in float32 and in place.

    Args:
        q_ptr, k_ptr: rows of ``n_qh`` and ``n_kh`` heads of ``hd`` numbers, a row for each token.
        cos_ptr, sin_ptr: a row of ``rope_dim / 2`` for each token, unless USE_COS_SIN.
        cos_sin_ptr: [positions, rope_dim], cosines before sines; pos_ptr: the row of each token.
        IS_NEOX_STYLE: whether a pair is apart by half of ``rope_dim``, not side by side.
    """
    half = rope_dim // 2
    if rope_dim != pad_rope_dim:  # where vllm-ascend 0.23's kernel takes other columns as sines
        return NotImplemented
    if USE_COS_SIN:
        assert cos_sin_ptr is not None
        assert pos_ptr is not None
        rows = cos_sin_ptr[pos_ptr[:num_tokens].long()].float()
        cos, sin = rows[:, :half], rows[:, half:rope_dim]
    else:
        assert cos_ptr is not None
        assert sin_ptr is not None
        cos = cos_ptr.as_strided((num_tokens, half), (cos_row_stride or 0, 1)).float()
        sin = sin_ptr.as_strided((num_tokens, half), (sin_row_stride or 0, 1)).float()
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    for pointer, heads, stride in ((q_ptr, n_qh, q_row_stride), (k_ptr, n_kh, k_row_stride)):
        turned = pointer.as_strided((num_tokens, heads, hd), (stride, hd, 1))[..., :rope_dim]
        if IS_NEOX_STYLE:
            first, second = turned[..., :half], turned[..., half:]
        else:
            first, second = turned[..., ::2], turned[..., 1::2]
        one, two = first.float(), second.float()
        # Computed before either is written: in float32 these are the numbers themselves.
        new_first, new_second = one * cos - two * sin, two * cos + one * sin
        first.copy_(new_first)
        second.copy_(new_second)
    return None


MERGING = "vllm_ascend.ops.triton.dcp.dcp_a2a"

KERNELS: dict[str, Callable[..., Any]] = {
    "vllm_ascend.ops.triton.rope._triton_rope": rope,
    f"{MERGING}._pack_dcp_output_lse_kernel": rank_merging.pack,
    f"{MERGING}._fused_dcp_lse_combine_kernel": rank_merging.combine,
}
"""Qualified name of a kernel -> what runs in its place."""

ROUND_A, ROUND_B = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
KEY_A, KEY_B = np.uint32(0x9E3779B9), np.uint32(0xBB67AE85)


def philox(
    c0: Words, c1: Words, c2: Words, c3: Words, k0: Words, k1: Words, *, rounds: int
) -> tuple[Words, Words, Words, Words]:
    """Random words from a counter of four words and a key of two, by Philox 4x32.

    Source: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (2011).
    """
    low, high = np.uint64(0xFFFFFFFF), np.uint64(32)
    for _ in range(rounds):
        of_zero, of_two = ROUND_A * c0.astype(np.uint64), ROUND_B * c2.astype(np.uint64)
        c0 = (of_two >> high).astype(np.uint32) ^ c1 ^ k0
        c2 = (of_zero >> high).astype(np.uint32) ^ c3 ^ k1
        c1, c3 = (of_two & low).astype(np.uint32), (of_zero & low).astype(np.uint32)
        k0, k1 = k0 + KEY_A, k1 + KEY_B
    return c0, c1, c2, c3


def install(interpreter: ModuleType) -> None:
    """Have ``triton.runtime.interpreter`` draw random words at once, not in 100 steps of it."""
    import triton.language as tl

    call = interpreter.InterpretedFunction.__call__

    def draw(c0: Any, c1: Any, c2: Any, c3: Any, k0: Any, k1: Any, n_rounds: Any = 10) -> Any:
        operands = (c0, c1, c2, c3, k0, k1)
        words = [one.handle.data for one in operands]
        drawn = philox(*words, rounds=int(getattr(n_rounds, "value", n_rounds)))
        largest = max(operands, key=lambda one: (one.type.is_block(), one.handle.data.size)).type
        return tuple(
            tl.core.tensor(interpreter.TensorHandle(data, tl.uint32), largest) for data in drawn
        )

    @functools.wraps(call)
    def wrapper(self: Any, *arguments: Any, **named: Any) -> Any:
        if self.fn.__name__ == "philox_impl" and arguments[0].dtype == tl.uint32:
            return draw(*arguments, **named)
        return call(self, *arguments, **named)

    interpreter.InterpretedFunction.__call__ = wrapper

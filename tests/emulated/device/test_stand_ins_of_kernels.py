# SPDX-License-Identifier: Apache-2.0
"""What runs in the place of a slow Triton kernel gives what the interpreted kernel gives."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
import triton
import triton.language as tl

from emulated_npu import counters
from emulated_npu.triton_interpreter import stand_ins
from tests.support import hosts

ROPE = "vllm_ascend.ops.triton.rope._triton_rope"
TOKENS, HEAD = 5, 64


@contextmanager
def interpreted() -> Iterator[None]:
    """Without the stand-ins."""
    from triton.runtime import interpreter

    with pytest.MonkeyPatch.context() as patches:
        patches.setattr(stand_ins, "KERNELS", {})
        function = interpreter.InterpretedFunction
        patches.setattr(function, "__call__", function.__call__.__wrapped__)
        yield


def rotated(
    dtype: torch.dtype, rope_dim: int, is_neox: bool, by_position: bool
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Queries and keys before and after vllm-ascend's wrapper."""
    from vllm_ascend.ops.triton import rope

    torch.manual_seed(1)
    q, k = (torch.randn(TOKENS, heads, HEAD).to(dtype) for heads in (3, 2))
    table = torch.randn(32, rope_dim).to(dtype)
    positions = torch.tensor([7, 0, 30, 7, 12])  # 0.23 reads on into the row after one
    if by_position:
        how = {"cos_sin_cache": table.npu(), "positions": positions.npu()}
    else:
        cos, sin = table[positions].chunk(2, dim=-1)
        how = {"cos": cos.contiguous().npu(), "sin": sin.contiguous().npu()}
    found = rope.rope_forward_triton(
        q.npu(), k.npu(), rope_dim=rope_dim, is_neox_style=is_neox, **how
    )
    return [q, k], [one.cpu() for one in found]


@pytest.fixture(autouse=True)
def sizes_of_the_device() -> None:
    from vllm_ascend.ops.triton import triton_utils

    triton_utils.init_device_properties_triton()


@pytest.mark.parametrize(
    ("dtype", "rope_dim", "is_neox", "by_position"),
    [
        *itertools.product(
            [torch.float32, torch.bfloat16], [HEAD, HEAD // 2], [True, False], [True, False]
        ),
        (torch.float32, 48, True, True),  # interpreted after all
    ],
)
def test_rotary_embedding(
    dtype: torch.dtype, rope_dim: int, is_neox: bool, by_position: bool
) -> None:
    with interpreted():
        before, wanted = rotated(dtype, rope_dim, is_neox, by_position)
    counted = counters.snapshot()
    _, found = rotated(dtype, rope_dim, is_neox, by_position)
    assert (counters.snapshot() - counted).launches["triton._triton_rope"] == 1
    for old, one, other in zip(before, wanted, found, strict=True):
        assert torch.equal(one, other)
        assert not torch.equal(old, other)


def test_rotary_embedding_writes_in_place_and_in_a_graph() -> None:
    arguments = {
        "q_row_stride": HEAD, "k_row_stride": HEAD, "cos_ptr": None, "cos_row_stride": None,
        "sin_ptr": None, "sin_row_stride": None, "num_tokens": TOKENS, "n_qh": 1, "n_kh": 1,
        "cos_sin_row_stride": HEAD, "hd": HEAD, "rope_dim": HEAD, "pad_rope_dim": HEAD,
        "BLOCK_SIZE_HEAD": 1, "IS_NEOX_STYLE": True, "USE_COS_SIN": True,
    }  # fmt: skip
    from vllm_ascend.ops.triton import rope

    q, k = torch.randn(TOKENS, 1, HEAD).npu(), torch.randn(TOKENS, 1, HEAD).npu()
    places = {
        "q_ptr": q,
        "k_ptr": k,
        "cos_sin_ptr": torch.randn(8, HEAD).npu(),
        "pos_ptr": torch.tensor([3, 1, 4, 1, 5]).npu(),
    }
    first, second = q.clone(), k.clone()
    graph = torch.npu.NPUGraph()
    with torch.npu.graph(graph):
        rope._triton_rope[(1,)](**places, **arguments)
    assert torch.equal(q, first)
    graph.replay()
    with interpreted():
        rope._triton_rope[(1,)](**{**places, "q_ptr": first, "k_ptr": second}, **arguments)
    assert torch.equal(q, first)
    assert torch.equal(k, second)


def merged(heads_apart: bool, with_own: bool) -> list[torch.Tensor]:
    """What two ranks send, and the mean of it and of what all ranks have, by vllm-ascend's."""
    from vllm_ascend.ops.triton.dcp import dcp_a2a

    torch.manual_seed(1)
    outputs, log_sums = torch.randn(4, 6, HEAD), 4 * torch.randn(4, 6, 1)
    log_sums[1, :4], log_sums[0, 1] = -torch.inf, torch.nan  # no keys anywhere, or on one
    outputs[1, :4] = torch.nan
    strided = outputs.transpose(0, 1).contiguous().npu().transpose(0, 1)
    sent = dcp_a2a.pack_dcp_output_lse(strided, log_sums.npu(), 2, scatter_dim=int(heads_apart))
    own = {}
    if with_own:
        shape = (4, 3) if heads_apart else (2, 6)
        own = {"local_output": torch.randn(*shape, HEAD), "local_lse": torch.randn(*shape, 1)}
        own["local_lse"][0, 0] = -torch.inf
    mean = dcp_a2a.fused_dcp_lse_combine(
        sent, HEAD, int(heads_apart), **{name: one.npu() for name, one in own.items()}
    )
    return [sent.cpu(), mean.cpu()]


@hosts.only_on("vllm_ascend_0_30", "0.23.0 merges ranks by operators of torch_npu")
@pytest.mark.parametrize("heads_apart", [True, False])
@pytest.mark.parametrize("with_own", [True, False])
def test_attention_over_ranks(heads_apart: bool, with_own: bool) -> None:
    with interpreted():
        wanted = merged(heads_apart, with_own)
    counted = counters.snapshot()
    found = merged(heads_apart, with_own)
    launches = (counters.snapshot() - counted).launches
    for kernel in ("_pack_dcp_output_lse_kernel", "_fused_dcp_lse_combine_kernel"):
        assert launches[f"triton.{kernel}"] == 1
    for one, other in zip(wanted, found, strict=True):
        assert torch.equal(one.view(torch.int32), other.view(torch.int32))
    assert found[1].isfinite().all()


@triton.jit
def draw(seeds, words, numbers, position, SEEDS: tl.constexpr, COUNT: tl.constexpr):  # noqa: N803
    index = tl.arange(0, COUNT)
    of_one = tl.randint(tl.load(seeds), position)
    tl.store(words, of_one)
    tl.store(words + 1 + index, tl.randint(tl.load(seeds), index))
    tl.store(numbers + index, tl.rand(of_one, index))
    several = tl.load(seeds + tl.arange(0, SEEDS))
    tl.store(words + 1 + COUNT + tl.arange(0, SEEDS), tl.randint(several, position))


@pytest.mark.parametrize("position", [0, 7, (1 << 30) + 3])
def test_random_words(position: int) -> None:
    count, seeds = 16, torch.tensor([-3, 5, 1 << 40, (1 << 63) - 1])

    def drawn() -> list[torch.Tensor]:
        words = torch.zeros(1 + count + len(seeds), dtype=torch.int32).npu()
        numbers = torch.zeros(count).npu()
        draw[(1,)](seeds.npu(), words, numbers, position, SEEDS=len(seeds), COUNT=count)
        return [words.cpu(), numbers.cpu()]

    with interpreted():
        wanted = drawn()
    found = drawn()
    for one, other in zip(wanted, found, strict=True):
        assert torch.equal(one, other)
    assert len(found[1].unique()) == count

# SPDX-License-Identifier: Apache-2.0
"""Operators called as vllm-ascend calls them: on npu tensors, counted once, checked, in place."""

from __future__ import annotations

import importlib

import pytest
import torch
import torch_npu

from emulated_npu import counters
from emulated_npu.custom_operators import schemas
from emulated_npu.operators import registry

needs_vllm_ascend = pytest.mark.skipif(
    schemas.find_schemas() is None, reason="vllm-ascend is not installed"
)


def launches_of(name: str) -> int:
    return counters.snapshot().launches.get(name, 0)


@needs_vllm_ascend
def test_a_custom_operator_runs_on_the_device_and_is_counted_once() -> None:
    x, gamma = torch.randn(3, 8).npu(), torch.ones(8).npu()
    before = launches_of("_C_ascend.npu_add_rms_norm_bias")
    y, root, total = torch.ops._C_ascend.npu_add_rms_norm_bias(x, x, gamma, None, 1e-6)
    assert launches_of("_C_ascend.npu_add_rms_norm_bias") == before + 1
    assert {tensor.device.type for tensor in (y, root, total)} == {"npu"}
    host = x.cpu() * 2
    torch.testing.assert_close(y.cpu(), torch.nn.functional.rms_norm(host, (8,), eps=1e-6))
    assert torch.equal(total.cpu(), host)


@needs_vllm_ascend
def test_the_strict_check_reaches_through_the_dispatcher() -> None:
    x = torch.randn(3, 8).npu()
    with pytest.raises(registry.OperatorArgumentError, match=r"_C_ascend\.npu_gemma_rms_norm: x"):
        torch.ops._C_ascend.npu_gemma_rms_norm(x, torch.ones(8).half().npu())
    with pytest.raises(registry.OperatorArgumentError, match="gamma is a CPU tensor"):
        torch.ops._C_ascend.npu_gemma_rms_norm(x, torch.ones(8))


@needs_vllm_ascend
def test_an_operator_that_writes_in_place_returns_the_callers_tensor() -> None:
    x, y = torch.ones(2, 2).npu(), torch.zeros(2, 4).half().npu()
    weight, adapters = torch.ones(1, 4, 2).half().npu(), torch.tensor([0, -1]).npu()
    assert torch.ops._C_ascend.bgmv_expand(x, weight, adapters, y, 0, 4) is y
    assert y.cpu().tolist() == [[2.0] * 4, [0.0] * 4]


@needs_vllm_ascend
def test_vllm_ascend_registers_its_meta_kernels() -> None:
    importlib.import_module("vllm_ascend.vllm_ascend_C")
    importlib.import_module("vllm_ascend.meta_registration")
    x = torch.empty(2, 3, device="meta")
    assert torch.ops._C_ascend.bgmv_expand(x, x, x, x, 0, 3).shape == (2, 3)


@needs_vllm_ascend
def test_a_custom_operator_without_a_kernel_fails_by_name() -> None:
    x = torch.zeros(1).npu()
    with pytest.raises(NotImplementedError, match=r"no torch\.ops\._C_ascend\.npu_sign_bits_pack;"):
        torch.ops._C_ascend.npu_sign_bits_pack(x, 1)


def test_rotary_embedding_writes_through_views() -> None:
    storage = torch.randn(4, 3, 64).npu()
    before = storage.cpu()
    query, key = storage[:2].view(2, -1), storage[2:].view(2, -1)
    cache = torch.cat((torch.zeros(8, 32), torch.ones(8, 32)), -1).npu()
    positions = torch.tensor([1, 7]).npu()
    torch_npu._npu_rotary_embedding(positions, query, key, 64, cache, True)
    first, second = before.chunk(2, -1)
    # A quarter turn: cos is 0 and sin is 1 throughout.
    assert torch.equal(storage.cpu(), torch.cat((-second, first), -1))


def test_a_format_cast_returns_the_callers_tensor() -> None:
    weight = torch.randn(16, 16).npu()
    assert torch_npu.npu_format_cast(weight, 29) is weight
    assert torch_npu.get_npu_format(weight) == 2


def test_group_sizes_on_the_device_are_no_host_read() -> None:
    x, weight = torch.randn(3, 4).npu(), torch.randn(2, 4, 5).npu()
    group_list = torch.tensor([1, 2]).npu()
    before = counters.snapshot()
    (y,) = torch_npu.npu_grouped_matmul(
        [x], [weight], group_list=group_list, split_item=2, group_type=0, group_list_type=1
    )
    difference = counters.snapshot() - before
    assert difference.host_reads == {}
    assert difference.launches == {"npu_grouped_matmul": 1}
    expected = torch.cat((x[:1].cpu() @ weight[0].cpu(), x[1:].cpu() @ weight[1].cpu()))
    torch.testing.assert_close(y.cpu(), expected)


@needs_vllm_ascend
def test_tokens_go_to_the_cache_in_groups_without_a_host_read() -> None:
    slots = torch.tensor([1, 2, -1, 7], dtype=torch.int32).npu()
    groups = [torch.full((4,), 9, dtype=torch.int32).npu() for _ in range(3)]
    keys = torch.arange(1, 9, dtype=torch.int8).view(4, 2).npu()
    cache = torch.zeros(2, 4, 1, 2, dtype=torch.int8).npu()
    before = counters.snapshot()
    torch.ops._C_ascend.store_kv_block_metadata(slots, *groups, 4)
    torch.ops._C_ascend.store_kv_block(keys, cache, *groups, 4)
    difference = counters.snapshot() - before
    assert difference.host_reads == {}
    assert difference.launches == {
        "_C_ascend.store_kv_block_metadata": 1,
        "_C_ascend.store_kv_block": 1,
    }
    assert [group.cpu().tolist() for group in groups] == [[2, 1, 0, 0], [0, 3, 0, 0], [1, 7, 0, 0]]
    assert cache.view(8, 2).cpu().tolist() == [
        *([0, 0], [1, 2], [3, 4], [0, 0]),
        *([0, 0], [0, 0], [0, 0], [7, 8]),
    ]
    with pytest.raises(registry.OperatorArgumentError, match="group_len is a CPU tensor"):
        torch.ops._C_ascend.store_kv_block(keys, cache, groups[0].cpu(), *groups[1:], 4)


@needs_vllm_ascend
def test_a_list_of_weights_is_lent_to_the_grouped_product() -> None:
    x = torch.randint(-9, 9, (3, 4), dtype=torch.int8)
    weight = [torch.randint(-9, 9, (4, 64), dtype=torch.int8) for _ in range(2)]
    scales, x_scale = [torch.rand(64) / 9 for _ in weight], torch.rand(3)
    output, scale, offset = torch.ops._C_ascend.grouped_matmul_swiglu_quant_weight_nz_tensor_list(
        x=x.npu(),
        weight=[torch_npu.npu_format_cast(matrix.npu(), 29) for matrix in weight],
        weight_scale=[values.npu() for values in scales],
        x_scale=x_scale.npu(),
        group_list=torch.tensor([1, 3]).npu(),
        swiglu_limit=0.0,
    )
    assert {tensor.device.type for tensor in (output, scale, offset)} == {"npu"}
    hidden = torch.stack(
        [
            (x[row].double() @ weight[row > 0].double()) * scales[row > 0] * x_scale[row]
            for row in range(3)
        ]
    )
    expected = torch.nn.functional.silu(hidden[:, :32]) * hidden[:, 32:]
    actual = output.cpu().double() * scale.cpu().double().unsqueeze(-1)
    allowed = expected.abs().amax(-1, keepdim=True) / 127 * 0.51
    assert ((actual - expected).abs() <= allowed).all()


def test_int4_packed_on_the_device_is_read_transposed_as_well() -> None:
    """As W4A8's and W4A4's dense layers do: the weights are packed, and then transposed."""
    weight = torch.randint(-8, 8, (16, 32), dtype=torch.int32)
    x = torch.randint(-4, 5, (2, 16)).half()
    rows = torch_npu.npu_convert_weight_to_int4pack(weight.npu())
    columns = torch_npu.npu_convert_weight_to_int4pack(weight.t().contiguous().npu())
    assert (rows.shape, columns.shape) == ((16, 4), (32, 2))
    expected = x.double() @ weight.double()
    for packed in (rows, columns.transpose(-1, -2)):
        y = torch_npu.npu_weight_quant_batchmatmul(x.npu(), packed, torch.ones(1).half().npu())
        assert torch.equal(y.cpu().double(), expected)
    words, scale = torch_npu.npu_dynamic_quant(x.npu(), dst_type=torch.quint4x2)
    y = torch_npu.npu_quant_matmul(
        words,
        columns.transpose(-1, -2),
        torch.ones(32).npu(),
        pertoken_scale=scale,
        output_dtype=torch.float16,
    )
    error = (y.cpu().double() - expected).abs()
    assert (error <= scale.cpu().double().unsqueeze(-1) * 0.51 * weight.double().abs().sum(0)).all()


@needs_vllm_ascend
def test_blocks_that_came_in_parts_are_put_in_order_in_each_cache_of_a_list() -> None:
    whole = torch.randn(2, 3, 4, 2, 16).half()
    caches = [cache.npu() for cache in whole.clone()]
    for cache, source in zip(caches, whole, strict=True):
        # Two ranks sent block 2, each its own head of all tokens.
        cache[2].copy_(source[2].transpose(0, 1).reshape(4, 2, 16))
    block = torch.tensor([2]).npu()
    torch.ops._C_ascend.transpose_kv_cache_by_block(caches[:1], caches[1:], block, 4, 2, 16, 2, 1)
    assert torch.equal(torch.stack([cache.cpu() for cache in caches]), whole)

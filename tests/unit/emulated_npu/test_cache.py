# SPDX-License-Identifier: Apache-2.0
"""Operators that write and read paged caches, against plain loops."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from emulated_npu.operators import requirements
from emulated_npu.operators.cache import (
    npu_gather_pa_kv_cache,
    npu_paged_cache_load,
    npu_reshape_and_cache,
    npu_scatter_nd_update_,
    npu_scatter_pa_kv_cache,
)
from emulated_npu.operators.cache_mla import npu_kv_rmsnorm_rope_cache
from emulated_npu.settings import EmulatorSettings
from tests.support.operators.attention_reference import assert_close, checked_in_float32
from tests.support.operators.operator_testing import refused

few = settings(max_examples=25, deadline=None)
seeds = st.integers(0, 2**31)
BLOCKS, BLOCK_SIZE = 4, 16
SLOTS = BLOCKS * BLOCK_SIZE
# Distinct slots with padding (-1) between them.
slot_lists = st.lists(st.integers(0, SLOTS - 1), unique=True, max_size=9).flatmap(
    lambda used: st.permutations([*used, -1, -1])
)


@few
@given(slot_lists, seeds, st.sampled_from([torch.float16, torch.bfloat16]))
def test_reshape_and_cache(slots, seed, dtype):
    generator = torch.Generator().manual_seed(seed)
    key = torch.randn(len(slots), 2, 8, generator=generator).to(dtype)
    # A strided value, as a slice of the qkv projection is.
    value = torch.randn(len(slots), 2, 24, generator=generator).to(dtype)[..., 8:20]
    key_cache = torch.randn(BLOCKS, BLOCK_SIZE, 2, 8, generator=generator).to(dtype)
    value_cache = torch.randn(BLOCKS, BLOCK_SIZE, 2, 12, generator=generator).to(dtype)
    expected_key, expected_value = key_cache.clone(), value_cache.clone()
    for token, slot in enumerate(slots):
        if slot >= 0:
            expected_key[slot // BLOCK_SIZE, slot % BLOCK_SIZE] = key[token]
            expected_value[slot // BLOCK_SIZE, slot % BLOCK_SIZE] = value[token]
    indices = torch.tensor(slots, dtype=torch.int32)
    assert npu_reshape_and_cache.checked(key, value, key_cache, value_cache, indices) is None
    assert key_cache.equal(expected_key)
    assert value_cache.equal(expected_value)


@pytest.mark.parametrize("slot", [-2, SLOTS, SLOTS + 100])
def test_a_slot_outside_the_cache_is_an_error(slot):
    rows = torch.ones(2, 2, 8)
    cache = torch.zeros(BLOCKS, BLOCK_SIZE, 2, 8)
    indices = torch.tensor([3, slot], dtype=torch.int32)
    with pytest.raises(ValueError, match=f"slot {slot} is outside the cache of {SLOTS} slots"):
        npu_reshape_and_cache.kernel(rows, rows, cache, cache, indices)
    assert cache.eq(0).all()  # nothing was written before the error


def test_reshape_and_cache_refuses():
    rows, cache = torch.ones(2, 2, 8).half(), torch.zeros(4, 16, 2, 8).half()
    slots = torch.zeros(2, dtype=torch.int32)
    for arguments, message in (
        ((rows, rows, cache, cache, slots.long()), "slot_indices is int64"),
        ((rows.float(), rows, cache, cache, slots), "key is float32, key_cache is float16"),
        ((rows, rows.bfloat16(), cache, cache, slots), "value is bfloat16, value_cache is float16"),
        ((rows[:1], rows, cache, cache, slots), r"key has shape \(1, 2, 8\)"),
        ((rows, rows, cache[0], cache, slots), "key_cache has 3 dimensions"),
        ((rows, rows, cache.transpose(0, 1), cache, slots), "key_cache .* is not contiguous"),
        ((rows, rows, cache, cache.transpose(0, 1), slots), "value_cache .* is not contiguous"),
    ):
        with refused(message):
            npu_reshape_and_cache.run_check(*arguments)


@few
@given(slot_lists, st.sampled_from(["PA_NZ", "Norm"]), seeds)
def test_scatter_pa_kv_cache(slots, mode, seed):
    generator = torch.Generator().manual_seed(seed)
    key = torch.randn(len(slots), 2, 32, generator=generator)
    value = torch.randn(len(slots), 2, 16, generator=generator)
    caches, expected = [], []
    for rows in (key, value):
        width = rows.shape[1] * rows.shape[2]
        shape = (
            (BLOCKS, width // 16, BLOCK_SIZE, 16)
            if mode == "PA_NZ"
            else (BLOCKS, BLOCK_SIZE, *rows.shape[1:])
        )
        cache = torch.randn(shape, generator=generator)
        wanted = cache.clone()
        for token, slot in enumerate(slots):
            if slot < 0:
                continue
            block, offset = slot // BLOCK_SIZE, slot % BLOCK_SIZE
            for feature, number in enumerate(rows[token].flatten().tolist()):
                if mode == "PA_NZ":
                    wanted[block, feature // 16, offset, feature % 16] = number
                else:
                    head, column = divmod(feature, rows.shape[2])
                    wanted[block, offset, head, column] = number
        caches.append(cache)
        expected.append(wanted)
    indices = torch.tensor(slots, dtype=torch.int64)
    npu_scatter_pa_kv_cache.checked(key, value, *caches, indices, cache_mode=mode)
    assert caches[0].equal(expected[0])
    assert caches[1].equal(expected[1])


@few
@given(slot_lists, seeds)
def test_scatter_into_int8_caches_with_heads_apart(slots, seed):
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randint(-128, 128, (len(slots), 2, 64), dtype=torch.int8, generator=generator)
    shape = (BLOCKS, 2, 2, BLOCK_SIZE, 32)
    cache = torch.randint(-128, 128, shape, dtype=torch.int8, generator=generator)
    wanted = cache.clone()
    for token, slot in enumerate(slots):
        if slot < 0:
            continue
        block, offset = divmod(slot, BLOCK_SIZE)
        for head in range(2):
            for column in range(64):
                number = rows[token, head, column]
                wanted[block, head, column // 32, offset, column % 32] = number
    indices = torch.tensor(slots, dtype=torch.int32)
    npu_scatter_pa_kv_cache.checked(rows, rows.clone(), cache, cache.clone(), indices)
    assert cache.equal(wanted)


def test_scatter_pa_kv_cache_refuses():
    rows, slots = torch.ones(2, 2, 16).half(), torch.zeros(2, dtype=torch.int32)
    cache = torch.zeros(4, 2, 16, 16).half()
    npu_scatter_pa_kv_cache.run_check(rows, rows, cache, cache, slots)
    for change, message in (
        ({"cache_mode": "PA"}, "cache_mode is 'PA'"),
        ({"cache_mode": "Norm"}, r"key_cache has shape \(4, 2, 16, 16\); it must be \(any, any, 2"),
        ({"value": rows.float()}, "value is float32"),
        ({"slot_mapping": slots.float()}, "slot_mapping is float32"),
        ({"slot_mapping": slots[:1]}, r"slot_mapping has shape \(1,\)"),
        ({"key": rows.transpose(0, 1)}, "key .* is not contiguous"),
        ({"value": rows[0]}, "value has 2 dimensions"),
        ({"key_cache": cache.transpose(2, 3)}, "key_cache .* is not contiguous"),
        ({"key": rows[..., :12].contiguous()}, "heads . head size of key is 24"),
        ({"value_cache": cache[:, :1].contiguous()}, r"value_cache has shape \(4, 1, 16, 16\)"),
    ):
        arguments = {
            "key": rows, "value": rows, "key_cache": cache, "value_cache": cache,
            "slot_mapping": slots, **change,
        }  # fmt: skip
        with refused(message):
            npu_scatter_pa_kv_cache.run_check(**arguments)
    with pytest.raises(NotImplementedError, match="compress_lens"):
        npu_scatter_pa_kv_cache.kernel(rows, rows, cache, cache, slots, seq_lens=slots)


@few
@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 4)), unique=True, max_size=6),
    st.sampled_from([1, 2]),
    seeds,
)
def test_scatter_nd_update(places, depth, seed):
    generator = torch.Generator().manual_seed(seed)
    if depth == 1:
        places = [(row,) for row in dict(places)]
    source = torch.randn(4, 5, 6, generator=generator)
    updates = torch.randn(len(places) + 1, *source.shape[depth:], generator=generator)
    indices = torch.tensor([*places, (-1,) * depth]).view(-1, depth)
    expected = source.clone()
    for place, update in zip(places, updates, strict=False):
        expected[place] = update
    assert npu_scatter_nd_update_.checked(source, indices, updates) is source
    assert source.equal(expected)


def test_scatter_nd_update_refuses():
    source, indices, updates = torch.zeros(4, 6), torch.zeros(3, 1).int(), torch.zeros(3, 6)
    for arguments, message in (
        ((source.double(), indices, updates.double()), "input is float64"),
        ((source, indices, updates.half()), "updates is float16"),
        ((source, indices.float(), updates), "indices is float32"),
        ((source, indices.flatten(), updates), "must have two dimensions or more"),
        ((source, indices, updates[:2]), r"updates has shape \(2, 6\); it must be \(3, 6\)"),
    ):
        with refused(message):
            npu_scatter_nd_update_.run_check(*arguments)
    with pytest.raises(ValueError, match="slot 4 is outside the cache of 4"):
        npu_scatter_nd_update_.kernel(source, indices + 4, updates)


@few
@given(
    st.lists(st.tuples(st.integers(0, 20), st.integers(0, 25)), min_size=1, max_size=3),
    st.booleans(),
    seeds,
)
def test_paged_cache_load(requests, given_outputs, seed):
    """Starts count whole blocks: their remainder has no effect."""
    generator = torch.Generator().manual_seed(seed)
    key_cache = torch.randn(12, 16, 1, 8, generator=generator)
    value_cache = torch.randn(12, 16, 1, 4, generator=generator)
    table = torch.randperm(12, generator=generator).view(3, 4)[: len(requests)].int()
    lengths, starts = [pair[0] for pair in requests], [pair[1] for pair in requests]
    outputs = {}
    if given_outputs:
        outputs = {
            "key": torch.full((sum(lengths) + 1, 1, 8), 7.0),
            "value": torch.full((sum(lengths) + 1, 1, 4), 7.0),
        }
    key, value = npu_paged_cache_load.checked(
        key_cache, value_cache, table, torch.tensor(lengths, dtype=torch.int32),
        seq_starts=torch.tensor(starts, dtype=torch.int32), **outputs,
    )  # fmt: skip
    if given_outputs:
        assert key is outputs["key"]
        assert value is outputs["value"]
        assert key[-1].eq(7).all()
    gathered = torch.full((sum(lengths), 1, 8), 7.0), torch.full((sum(lengths), 1, 4), 7.0)
    npu_gather_pa_kv_cache.checked(
        key_cache, value_cache, table, torch.tensor(lengths), *gathered,
        seq_offset=torch.tensor(starts),
    )  # fmt: skip
    row = 0
    for request, (length, start) in enumerate(requests):
        for token in range(length):
            position = start // 16 * 16 + token
            block = int(table[request, position // 16])
            assert key[row].equal(key_cache[block, position % 16])
            assert value[row].equal(value_cache[block, position % 16])
            assert gathered[0][row].equal(key[row])
            assert gathered[1][row].equal(value[row])
            row += 1


def test_paged_cache_load_refuses():
    cache, table = torch.zeros(3, 16, 1, 8), torch.zeros(2, 1, dtype=torch.int32)
    lengths = torch.ones(2, dtype=torch.int32)
    for change, message in (
        ({"block_table": table.long()}, "block_table is int64"),
        ({"context_lens": lengths.long()}, "context_lens is int64"),
        ({"context_lens": lengths[:1]}, r"context_lens has shape \(1,\)"),
        ({"block_table": table.flatten()}, "block_table has 1 dimensions"),
        ({"seq_starts": lengths.long()}, "seq_starts is int64"),
        ({"seq_starts": lengths[:1]}, r"seq_starts has shape \(1,\)"),
        ({"value_cache": cache[0]}, "value_cache has 3 dimensions"),
        ({"key": torch.zeros(1, 1, 8)}, "key has 1 rows; context_lens sums to 2"),
        ({"value": torch.zeros(2, 1, 8).half()}, "value is float16"),
        ({"value": torch.zeros(2, 1, 16)[..., ::2]}, "value .* is not contiguous"),
        ({"key_cache": cache.transpose(0, 1)}, "key_cache .* is not contiguous"),
    ):
        arguments = {
            "key_cache": cache, "value_cache": cache, "block_table": table,
            "context_lens": lengths, **change,
        }  # fmt: skip
        with refused(message):
            npu_paged_cache_load.run_check(**arguments)
    with pytest.raises(ValueError, match="block_table has 1 columns"):
        npu_paged_cache_load.kernel(cache, cache, table, lengths + 16)


def test_gather_pa_kv_cache_refuses():
    cache, table = torch.zeros(3, 16, 1, 8), torch.zeros(2, 1, dtype=torch.int32)
    lengths, rows = torch.ones(2, dtype=torch.int32), torch.zeros(2, 1, 8)
    arguments = {
        "key_cache": cache, "value_cache": cache, "block_tables": table, "seq_lens": lengths,
        "key": rows, "value": rows,
    }  # fmt: skip
    for change, message in (
        ({"block_tables": table.float()}, "block_tables is float32"),
        ({"block_tables": table.flatten()}, "block_tables has 1 dimensions"),
        ({"seq_lens": lengths[:1]}, r"seq_lens has shape \(1,\)"),
        ({"seq_offset": lengths.float()}, "seq_offset is float32"),
        ({"seq_lens": torch.ones(4, dtype=torch.int32)[::2]}, "seq_lens .* is not contiguous"),
        ({"value_cache": cache[0]}, "value_cache has 3 dimensions"),
        ({"key": rows[:1]}, "key has 1 rows; seq_lens sums to 2"),
        ({"key": rows[..., :4].contiguous()}, r"key has shape \(2, 1, 4\)"),
        ({"value": rows.half()}, "value is float16"),
        ({"key_cache": cache.transpose(0, 1)}, "key_cache .* is not contiguous"),
    ):
        with refused(message):
            npu_gather_pa_kv_cache.run_check(**{**arguments, **change})
    with pytest.raises(NotImplementedError, match="is_seq_lens_cumsum"):
        npu_gather_pa_kv_cache.kernel(**arguments, is_seq_lens_cumsum=True)


def norm_and_rotate(row, gamma, cos, sin, epsilon):
    """One token of MLA in float64: the normed latent (512) and the rotated rope part (64)."""
    numbers = [float(number) for number in row]
    latent, rope = numbers[:512], numbers[512:]
    root = math.sqrt(sum(number * number for number in latent) / 512 + epsilon)
    normed = [number / root * float(weight) for number, weight in zip(latent, gamma, strict=True)]
    rotated = [0.0] * 64
    for pair in range(32):
        first, second = rope[2 * pair], rope[2 * pair + 1]
        rotated[pair] = first * float(cos[pair]) - second * float(sin[pair])
        rotated[pair + 32] = second * float(cos[pair + 32]) + first * float(sin[pair + 32])
    return torch.tensor(normed).double(), torch.tensor(rotated).double()


@settings(max_examples=10, deadline=None)
@given(slot_lists, st.sampled_from(["PA", "PA_BNSD", "PA_NZ"]), st.booleans(), seeds)
def test_kv_rmsnorm_rope_cache(slots, mode, wants_output, seed):
    generator = torch.Generator().manual_seed(seed)
    tokens = len(slots)
    kv = torch.randn(tokens, 1, 1, 576, generator=generator)
    gamma = torch.randn(512, generator=generator)
    cos, sin = (torch.randn(tokens, 1, 1, 64, generator=generator) for _ in range(2))
    k_cache = torch.full((BLOCKS, BLOCK_SIZE, 1, 64), 9.0)
    ckv_cache = torch.full((BLOCKS, BLOCK_SIZE, 1, 512), 9.0)
    results = checked_in_float32(
        npu_kv_rmsnorm_rope_cache, kv, gamma, cos, sin, torch.tensor(slots), k_cache, ckv_cache,
        dtype=torch.bfloat16, epsilon=1e-6, cache_mode=mode, is_output_kv=wants_output,
    )  # fmt: skip
    assert results[0] is k_cache
    assert results[1] is ckv_cache
    untouched = SLOTS - sum(slot >= 0 for slot in slots)
    for token, slot in enumerate(slots):
        normed, rotated = norm_and_rotate(
            kv[token, 0, 0], gamma, cos[token, 0, 0], sin[token, 0, 0], 1e-6
        )
        if wants_output:
            assert_close(results[2][token, 0, 0], rotated)
            assert_close(results[3][token, 0, 0], normed)
        if slot >= 0:
            assert_close(cached_row(k_cache, slot, mode), rotated)
            assert_close(cached_row(ckv_cache, slot, mode), normed)
    if not wants_output:
        assert [tuple(one.shape[1:]) for one in results[2:]] == [(1, 1, 64), (1, 1, 512)]
    assert int(k_cache.eq(9).sum()) == untouched * 64
    assert int(ckv_cache.eq(9).sum()) == untouched * 512


def cached_row(cache, slot, mode):
    """Features of one slot, looked up one by one in the form that the cache has."""
    block, offset = divmod(slot, BLOCK_SIZE)
    features = cache.shape[3]
    if mode != "PA_NZ":
        return cache[block, offset, 0]
    flat = cache[block].flatten()
    places = [(f // 16) * BLOCK_SIZE * 16 + offset * 16 + f % 16 for f in range(features)]
    return flat[places]


def test_kv_rmsnorm_rope_cache_refuses():
    def legal():
        return {
            "kv": torch.zeros(2, 1, 1, 576).half(), "gamma": torch.zeros(512).half(),
            "cos": torch.zeros(2, 1, 1, 64).half(), "sin": torch.zeros(2, 1, 1, 64).half(),
            "index": torch.zeros(2, dtype=torch.int64),
            "k_cache": torch.zeros(4, 16, 1, 64).half(),
            "ckv_cache": torch.zeros(4, 16, 1, 512).half(), "cache_mode": "PA",
        }  # fmt: skip

    npu_kv_rmsnorm_rope_cache.run_check(**legal())
    for change, message in (
        ({"kv": torch.zeros(2, 1, 1, 576)}, "kv is float32; documented"),
        ({"kv": torch.zeros(2, 1, 1, 96).half()}, r"kv has shape .* \(any, 1, any, 576\)"),
        ({"gamma": torch.zeros(256).half()}, "gamma has shape"),
        ({"cos": torch.zeros(2, 1, 1, 32).half()}, "cos has shape"),
        ({"sin": torch.zeros(1, 1, 1, 64).half()}, "sin has shape"),
        ({"index": torch.zeros(2, dtype=torch.int32)}, "index is int32"),
        ({"index": torch.zeros(3, dtype=torch.int64)}, r"index has shape \(3,\)"),
        ({"k_cache": torch.zeros(4, 16, 1, 64)}, "k_cache is float32"),
        ({"k_cache": torch.zeros(4, 16, 1, 32).half()}, "k_cache has shape"),
        (
            {
                "k_cache": torch.zeros(1, 1, 1, 64).half(),
                "ckv_cache": torch.zeros(1, 1, 1, 512).half(),
            },
            "2 tokens for a cache of 1 slots",
        ),
        ({"ckv_cache": torch.zeros(4, 8, 1, 512).half()}, "ckv_cache has shape"),
        ({"k_cache": torch.zeros(4, 16, 1, 576).half()[..., 512:]}, "k_cache .* not contiguous"),
    ):
        with refused(message):
            npu_kv_rmsnorm_rope_cache.run_check(**{**legal(), **change})
    with pytest.raises(NotImplementedError, match="cache_mode Norm"):
        npu_kv_rmsnorm_rope_cache.kernel(**{**legal(), "cache_mode": "Norm"})
    with pytest.raises(NotImplementedError, match="quantization"):
        npu_kv_rmsnorm_rope_cache.kernel(**legal(), c_kv_scale=torch.ones(512))


def test_a_cache_loads_into_its_own_dtype_only_under_float32_compute_too(monkeypatch):
    cache = torch.full((2, 16, 1, 8), 1.5)
    arguments = {
        "key_cache": cache, "value_cache": cache,
        "block_table": torch.ones(1, 1, dtype=torch.int32),
        "context_lens": torch.tensor([2], dtype=torch.int32),
        "value": torch.zeros(2, 1, 8, dtype=torch.bfloat16),
    }  # fmt: skip
    for float32_compute in (False, True):
        mode = dataclasses.replace(
            EmulatorSettings.from_environment({}), float32_compute=float32_compute
        )
        monkeypatch.setattr(requirements, "settings", lambda mode=mode: mode)
        with refused("value is bfloat16, value_cache is float32"):
            npu_paged_cache_load.run_check(**arguments)

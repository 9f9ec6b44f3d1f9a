# SPDX-License-Identifier: Apache-2.0
"""Operators that write and read paged caches, against plain loops."""

import dataclasses
import math
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from emulated_npu.custom_operators.cache_blocks import (
    store_kv_block,
    store_kv_block_metadata,
    transpose_kv_cache_by_block,
)
from emulated_npu.operators import cache_strides, requirements
from emulated_npu.operators.attention_fused_infer import npu_fused_infer_attention_score
from emulated_npu.operators.attention_paged import npu_paged_attention
from emulated_npu.operators.cache import (
    npu_gather_pa_kv_cache,
    npu_paged_cache_load,
    npu_reshape_and_cache,
    npu_scatter_nd_update_,
    npu_scatter_pa_kv_cache,
)
from emulated_npu.operators.cache_mla import npu_kv_rmsnorm_rope_cache
from emulated_npu.operators.registry import OperatorArgumentError
from emulated_npu.settings import EmulatorSettings
from tests.support.operators.attention_reference import assert_close, checked_in_float32
from tests.support.operators.operator_testing import (
    few,
    random_integers,
    random_tensor,
    refused,
    seeds,
)

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


BLOCK, STORED_BLOCKS = 4, 6

slot_runs = st.lists(
    st.tuples(st.integers(0, BLOCK * STORED_BLOCKS - 1), st.integers(1, 9), st.booleans()),
    min_size=1,
    max_size=5,
)
"""Where a run of slots starts, how long it is, and whether a negative slot follows it."""


def int32(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def slots_of(runs: list[tuple[int, int, bool]]) -> list[int]:
    slots: list[int] = []
    for start, length, padded in runs:
        slots += range(start, min(start + length, BLOCK * STORED_BLOCKS))
        slots += [-1] * padded
    return slots


def grouped(slots: list[int], room: int | None = None) -> list[torch.Tensor]:
    """What store_kv_block_metadata writes; what was there before is not to be seen."""
    written = [torch.full((room or len(slots),), 77, dtype=torch.int32) for _ in range(3)]
    assert store_kv_block_metadata.checked(int32(*slots), *written, BLOCK) is None
    return written


@few
@given(slot_runs)
def test_groups_cover_each_slot_once_and_are_as_long_as_can_be(runs):
    slots = slots_of(runs)
    groups = list(zip(*(column.tolist() for column in grouped(slots)), strict=True))
    used = [group for group in groups if group[0]]
    assert groups == used + [(0, 0, 0)] * (len(slots) - len(used))
    covered = []
    for length, token, slot in used:
        covered += [(token + i, slot + i) for i in range(length)]
        assert slot // BLOCK == (slot + length - 1) // BLOCK
    assert covered == [(token, slot) for token, slot in enumerate(slots) if slot >= 0]
    for (length, token, slot), (_, next_token, next_slot) in pairwise(used):
        joins = (token + length, slot + length) == (next_token, next_slot)
        assert not joins or next_slot % BLOCK == 0


def test_groups_by_hand():
    lengths, tokens, slots = grouped([-1, 2, 3, 4, 5, 9, -1, 10, 6], room=7)
    assert lengths.tolist() == [2, 2, 1, 1, 1, 0, 0]
    assert tokens.tolist() == [1, 3, 5, 7, 8, 0, 0]
    assert slots.tolist() == [2, 4, 9, 10, 6, 0, 0]
    assert [column.tolist() for column in grouped([-1, -1])] == [[0, 0]] * 3


@few
@given(
    seeds,
    slot_runs,
    st.sampled_from([torch.int8, torch.float16, torch.bfloat16]),
    st.sampled_from([(3,), (1, 3), (2, 2)]),
)
def test_tokens_are_stored_in_their_slots(seed, runs, dtype, token_shape):
    slots = slots_of(runs)
    keys = random_integers(seed, -99, 99, (len(slots), *token_shape)).to(dtype)
    size = keys[0].numel()
    cache = random_integers(seed + 1, -99, 99, (STORED_BLOCKS, BLOCK, 1, size)).to(dtype)
    expected = cache.flatten().tolist()
    for token, slot in enumerate(slots):
        for i in range(size if slot >= 0 else 0):
            expected[slot * size + i] = keys[token].flatten().tolist()[i]
    assert store_kv_block.checked(keys, cache, *grouped(slots), BLOCK) is None
    assert cache.flatten().tolist() == expected


def test_groups_without_a_token_or_with_a_negative_index_are_left_out():
    cache = torch.zeros(1, BLOCK, 1, dtype=torch.int8)
    groups = int32(0, 1, 1, -1, 1), int32(0, -1, 0, 0, 1), int32(0, 1, -1, 0, 3)
    store_kv_block.checked(torch.tensor([[5], [6]], dtype=torch.int8), cache, *groups, BLOCK)
    assert cache.flatten().tolist() == [0, 0, 0, 6]


def test_refusals_of_groups():
    out = [int32(0, 0) for _ in range(3)]
    with refused("store_kv_block_metadata: block_size is 0; it must be over 0"):
        store_kv_block_metadata.checked(int32(1), *out)
    with refused("slot_mapping_npu is int64; documented: int32"):
        store_kv_block_metadata.checked(int32(1).long(), *out, BLOCK)
    with refused("slot_mapping_npu has 2 dimensions"):
        store_kv_block_metadata.checked(int32(1, 2).view(1, 2), *out, BLOCK)
    with refused("slot_mapping_npu is empty"):
        store_kv_block_metadata.checked(int32(), *out, BLOCK)
    with refused("group_key_idx is int64"):
        store_kv_block_metadata.checked(int32(1), out[0], out[1].long(), out[2], BLOCK)
    with refused(r"group_key_cache_idx has shape \(3,\); it must be \(2\)"):
        store_kv_block_metadata.checked(int32(1), *out[:2], int32(0, 0, 0), BLOCK)
    with refused(r"group_len \(.*is not contiguous"):
        store_kv_block_metadata.checked(int32(1), int32(0, 0, 0)[::2], *out[:2], BLOCK)
    with refused("group_len has 2 entries; the slots make 3 groups"):
        store_kv_block_metadata.checked(int32(1, 3, 5), *out, BLOCK)
    assert [column.tolist() for column in out] == [[0, 0]] * 3


def store(**changes):
    given = {
        "key_in": torch.zeros(4, 2, dtype=torch.int8),
        "key_cache_in": torch.zeros(STORED_BLOCKS, BLOCK, 1, 2, dtype=torch.int8),
        "group_len": int32(2),
        "group_key_idx": int32(2),
        "group_key_cache_idx": int32(BLOCK * STORED_BLOCKS - 2),
        "block_size": BLOCK,
    }
    store_kv_block.checked(**{**given, **changes})


REFUSED = {
    "key_in is float32; documented: int8": {"key_in": torch.zeros(4, 2)},
    "key_in is int8, key_cache_in is float16": {
        "key_cache_in": torch.zeros(STORED_BLOCKS, BLOCK, 2).half()
    },
    "key_in's number of dimensions is 1": {"key_in": torch.zeros(4, dtype=torch.int8)},
    "key_cache_in .*is not contiguous": {
        "key_cache_in": torch.zeros(STORED_BLOCKS, BLOCK, 1, 4, dtype=torch.int8)[..., ::2]
    },
    "key_cache_in has 2 elements in a slot, key_in 3": {
        "key_in": torch.zeros(4, 3, dtype=torch.int8)
    },
    "block_size is 0": {"block_size": 0},
    "the elements of a block is 184322": {"block_size": 92161},
    "group_len is int64": {"group_len": torch.tensor([2])},
    "a group's length is 5; it must be from 1 to 4": {"group_len": int32(5)},
    "from token 3 to slot 22 reaches out of 4 tokens": {"group_key_idx": int32(3)},
    "from token 2 to slot 23 reaches out of 4 tokens or 24 slots": {
        "group_key_cache_idx": int32(23)
    },
}


@pytest.mark.parametrize("message", REFUSED)
def test_refusals_of_stores(message):
    store()
    with refused(message):
        store(**REFUSED[message])


HEAD = 16


@few
@given(
    seeds,
    st.sampled_from([torch.float16, torch.bfloat16]),
    st.integers(1, 3),
    st.integers(1, 3),
    st.integers(1, 2),
    st.integers(1, STORED_BLOCKS),
)
def test_blocks_from_several_ranks(seed, dtype, parts, heads_of_a_part, layers, chosen):
    heads = parts * heads_of_a_part
    order = torch.randperm(STORED_BLOCKS, generator=torch.Generator().manual_seed(seed))[:chosen]
    whole = random_tensor(seed, (2 * layers, STORED_BLOCKS, BLOCK, heads, HEAD), dtype)
    caches = whole.clone()
    for cache, source in zip(caches, whole, strict=True):
        for block in order.tolist():
            received = [
                source[block, token, head].tolist()
                for part in range(parts)
                for token in range(BLOCK)
                for head in range(part * heads_of_a_part, (part + 1) * heads_of_a_part)
            ]
            cache[block] = torch.tensor(received, dtype=dtype).view(BLOCK, heads, HEAD)
    keys, values = list(caches[:layers]), list(caches[layers:])
    transpose_kv_cache_by_block.checked(keys, values, order, BLOCK, heads, HEAD, parts, layers)
    assert torch.equal(caches, whole)


def transpose(**changes):
    cache = torch.zeros(STORED_BLOCKS, BLOCK, 2, HEAD).half()
    given = {
        "kCache": [cache],
        "vCache": [cache.clone()],
        "blockIDs": torch.tensor([4, 0]),
        "blockSize": BLOCK,
        "headNum": 2,
        "headDim": HEAD,
        "splitNum": 2,
        "layerNum": 1,
    }
    transpose_kv_cache_by_block.checked(**{**given, **changes})


REFUSED_PARTS = {
    "headDim is 8; it must be a multiple of 16": {"headDim": 8},
    "splitNum is 0": {"splitNum": 0},
    "headNum is 2; it must be a multiple of 3": {"splitNum": 3},
    "kCache has 1 caches; layerNum, at least 1, is 2": {"layerNum": 2},
    "vCache has 0 caches": {"vCache": []},
    r"kCache\[0\] is float32": {"kCache": [torch.zeros(STORED_BLOCKS, BLOCK, 2, HEAD)]},
    r"kCache\[0\] is float16, vCache\[0\] is bfloat16": {
        "vCache": [torch.zeros(STORED_BLOCKS, BLOCK, 2, HEAD).bfloat16()]
    },
    r"vCache\[0\] has shape \(1, 4, 2, 16\); it must be \(6, 4, 2, 16\)": {
        "vCache": [torch.zeros(1, BLOCK, 2, HEAD).half()]
    },
    r"kCache\[0\] .*is not contiguous": {
        "kCache": [torch.zeros(STORED_BLOCKS, BLOCK, 2, 2 * HEAD).half()[..., ::2]]
    },
    "blockIDs is int32; documented: int64": {"blockIDs": int32(1)},
    "blockIDs has 2 dimensions": {"blockIDs": torch.tensor([[1]])},
    r"blockIDs is \[6\]; it must name blocks from 0 to 5": {"blockIDs": torch.tensor([6])},
    r"blockIDs is \[-1\]": {"blockIDs": torch.tensor([-1])},
    r"blockIDs is \[1, 1\]": {"blockIDs": torch.tensor([1, 1])},
    r"blockIDs \(.*is not contiguous": {"blockIDs": torch.arange(4)[::2]},
    "blockIDs is empty": {"blockIDs": torch.tensor([], dtype=torch.int64)},
}


@pytest.mark.parametrize("message", REFUSED_PARTS)
def test_refusals_of_blocks_in_parts(message):
    transpose()
    with refused(message):
        transpose(**REFUSED_PARTS[message])


BLOCK_COUNT, BLOCK_ROWS, HEADS, SIZE = 5, 128, 2, 64


@pytest.fixture
def documented(monkeypatch):
    """As with a vllm-ascend that documents such caches."""
    monkeypatch.setattr(cache_strides, "_documented", False)
    cache_strides.learn({cache_strides.TOLD_BY, "other"})


@pytest.fixture
def undocumented(monkeypatch):
    monkeypatch.setattr(cache_strides, "_documented", True)
    cache_strides.learn({"other"})


def interleaved() -> tuple[torch.Tensor, torch.Tensor]:
    """K and V of each block side by side in one allocation: (blocks, block size, heads, size)."""
    both = torch.randn(BLOCK_COUNT, 2, BLOCK_ROWS, HEADS, SIZE).half()
    return both[:, 0], both[:, 1]


def fused_infer_arguments(key: torch.Tensor, value: torch.Tensor) -> dict:
    return {
        "query": torch.randn(2, 4, SIZE).half(),
        "key": key.view(BLOCK_COUNT, BLOCK_ROWS, HEADS * SIZE),
        "value": value.view(BLOCK_COUNT, BLOCK_ROWS, HEADS * SIZE),
        "block_table": torch.tensor([[3, 1], [4, 0]], dtype=torch.int32),
        "atten_mask": torch.triu(torch.ones(2048, 2048), diagonal=1).to(torch.int8),
        "input_layout": "TND",
        "block_size": BLOCK_ROWS,
        "actual_seq_lengths": [1, 2],
        "actual_seq_lengths_kv": [150, 7],
        "num_key_value_heads": HEADS,
        "num_heads": 4,
        "scale": 0.125,
        "sparse_mode": 3,
    }


def test_fused_attention_reads_them(documented):
    key, value = interleaved()
    assert not key.is_contiguous()
    arguments = fused_infer_arguments(key, value)
    output, _ = npu_fused_infer_attention_score.checked(**arguments)
    arguments["key"] = arguments["key"].contiguous()
    arguments["value"] = arguments["value"].contiguous()
    expected, _ = npu_fused_infer_attention_score.checked(**arguments)
    assert output.equal(expected)


def test_scatter_writes_them_and_nothing_between(documented):
    key, value = torch.randn(3, HEADS, SIZE).half(), torch.randn(3, HEADS, SIZE).half()
    room = torch.full((BLOCK_COUNT, 3, BLOCK_ROWS, HEADS, SIZE), 7.0).half()
    slots = [130, -1, 5]
    npu_scatter_pa_kv_cache.checked(
        key, value, room[:, 0], room[:, 2], torch.tensor(slots), cache_mode="Norm"
    )
    expected = torch.full_like(room, 7.0)
    for token, slot in enumerate(slots):
        if slot >= 0:
            expected[slot // BLOCK_ROWS, 0, slot % BLOCK_ROWS] = key[token]
            expected[slot // BLOCK_ROWS, 2, slot % BLOCK_ROWS] = value[token]
    assert room.equal(expected)


def test_they_are_refused_where_nothing_documents_them(undocumented):
    key, value = interleaved()
    rows = torch.randn(1, HEADS, SIZE).half()
    with pytest.raises(OperatorArgumentError, match=r"key .* is not contiguous"):
        npu_fused_infer_attention_score.run_check(**fused_infer_arguments(key, value))
    with pytest.raises(OperatorArgumentError, match=r"key_cache .* is not contiguous"):
        npu_scatter_pa_kv_cache.run_check(
            rows, rows, key, value, torch.tensor([0]), cache_mode="Norm"
        )


def test_other_operators_refuse_them(documented):
    key, value = interleaved()
    rows, slots = torch.randn(1, HEADS, SIZE).half(), torch.zeros(1, dtype=torch.int32)
    with pytest.raises(OperatorArgumentError, match=r"key_cache .* is not contiguous"):
        npu_reshape_and_cache.run_check(rows, rows, key, value, slots)
    with pytest.raises(OperatorArgumentError, match=r"key_cache .* is not contiguous"):
        npu_paged_attention.run_check(
            query=torch.randn(1, 4, SIZE).half(),
            key_cache=key,
            value_cache=value,
            num_kv_heads=HEADS,
            num_heads=4,
            scale_value=0.125,
            block_table=torch.zeros(1, 1, dtype=torch.int32),
            context_lens=torch.ones(1, dtype=torch.int32),
            out=torch.empty(1, 4, SIZE).half(),
        )


def test_only_the_distance_of_blocks_is_free(documented):
    cache_strides.require_blocks("cache", interleaved()[0][:1])
    storage = torch.zeros(10_000)
    for strides in ((32, 8, 1), (0, 8, 1), (31, 8, 1), (64, 1, 4), (64, 16, 1), (64, 8, 2)):
        cache = storage.as_strided((3, 4, 8), strides)
        if strides == (32, 8, 1):
            cache_strides.require_blocks("cache", cache)
            continue
        with pytest.raises(OperatorArgumentError, match=r"cache \(shape \(3, 4, 8\), strides"):
            cache_strides.require_blocks("cache", cache)


def test_blocks_that_came_in_parts_may_lie_apart(documented):
    key, value = interleaved()
    before = key.clone(), value.clone()
    chosen = torch.tensor([4, 0])
    sizes = (BLOCK_ROWS, HEADS, SIZE, HEADS, 1)
    transpose_kv_cache_by_block.checked([key], [value], torch.tensor([], dtype=torch.int64), *sizes)
    assert torch.equal(key, before[0])
    transpose_kv_cache_by_block.checked([key], [value], chosen, *sizes)
    for cache, old in zip((key, value), before, strict=True):
        for block in range(BLOCK_COUNT):
            flat = old[block].flatten()
            for token in (0, 1, BLOCK_ROWS - 1) if block in (0, 4) else ():
                for head in range(HEADS):
                    start = (head * BLOCK_ROWS + token) * SIZE
                    assert torch.equal(cache[block, token, head], flat[start : start + SIZE])
            assert block in (0, 4) or torch.equal(cache[block], old[block])


def test_blocks_that_came_in_parts_were_contiguous_before(undocumented):
    sizes = (BLOCK_ROWS, HEADS, SIZE, HEADS, 1)
    key, value = interleaved()
    with pytest.raises(OperatorArgumentError, match=r"kCache\[0\] .*is not contiguous"):
        transpose_kv_cache_by_block.checked([key], [value], torch.tensor([1]), *sizes)

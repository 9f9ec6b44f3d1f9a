# SPDX-License-Identifier: Apache-2.0
"""Kernels of _C_ascend that are not variants of torch_npu's, against scalar references."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from emulated_npu.custom_operators.cache import npu_scatter_nd_update_sk, npu_scatter_nd_update_v2
from emulated_npu.custom_operators.embedding import get_masked_input_and_mask
from emulated_npu.custom_operators.lora import bgmv_expand, bgmv_shrink, sgmv_expand, sgmv_shrink
from emulated_npu.custom_operators.matmul import batch_matmul_transpose
from emulated_npu.custom_operators.offload import swap_blocks_batch
from emulated_npu.custom_operators.speculation import (
    npu_copy_and_expand_eagle_inputs,
    npu_ngram_spec_decode,
)
from tests.support.operators.operator_testing import (
    assert_near,
    few,
    random_integers,
    random_tensor,
    refused,
    seeds,
)


def int32(values: list[int]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


@few
@given(seeds, st.sampled_from([torch.int32, torch.int64]), st.integers(0, 4))
def test_masked_input(seed, dtype, padding):
    tokens = random_integers(seed, 0, 30, (3, 5), dtype)
    rows, is_foreign = get_masked_input_and_mask.checked(tokens, 4, 10, padding, 20, 24)
    assert rows.dtype == dtype
    assert is_foreign.dtype == torch.bool
    for token, row, foreign in zip(
        tokens.flatten().tolist(), rows.flatten().tolist(), is_foreign.flatten(), strict=True
    ):
        if 4 <= token < 10:
            assert (row, bool(foreign)) == (token - 4, False)
        elif 20 <= token < 24:
            assert (row, bool(foreign)) == (6 + padding + token - 20, False)
        else:
            assert (row, bool(foreign)) == (0, True)


@few
@given(
    st.sampled_from([npu_scatter_nd_update_v2, npu_scatter_nd_update_sk]),
    seeds,
    st.integers(1, 2),
    st.booleans(),
)
def test_scatter_nd_update(scatter, seed, indexed_dims, strided):
    var = random_tensor(seed, (4, 3, 2 * 5))[..., :: 2 if strided else 1]
    before = var.clone()
    places = torch.randperm(4 * 3, generator=torch.Generator().manual_seed(seed))[:3]
    indices = torch.stack((places // 3, places % 3), -1)
    if indexed_dims == 1:
        indices = torch.tensor([[3], [0], [2]])
    update = random_tensor(seed + 1, (3, *var.shape[indexed_dims:]))
    assert scatter.checked(var, indices, update) is None
    for index, rows in zip(indices.tolist(), update, strict=True):
        before[tuple(index)] = rows
    assert torch.equal(var, before)


def expanded_reference(
    tokens: list[int],
    positions: list[int],
    next_tokens: list[int],
    requests: list[tuple[int, int]],
    slots: int,
    shift: bool,
) -> list[tuple[int, int, int, int]]:
    """(token, position, rejected, masked) of every expanded token; requests: (kept, rejected)."""
    result, start = [], 0
    for (kept, rejected), next_token in zip(requests, next_tokens, strict=True):
        copied = tokens[start : start + kept][1 if shift else 0 :]
        line = [(token, 0, 0) for token in copied] + [(next_token, 0, 0)]
        line += [(-7, 0, 1)] * (slots - 1)
        first = positions[start]
        result += [(token, first + i, r, m) for i, (token, r, m) in enumerate(line)]
        result += [(99, 0, 1, 0)] * rejected
        start += kept + rejected
    return result


@few
@given(
    seeds,
    st.lists(st.tuples(st.integers(1, 4), st.integers(0, 2)), min_size=1, max_size=4),
    st.integers(1, 3),
    st.booleans(),
)
def test_copy_and_expand(seed, requests, slots, shift):
    lengths = [kept + rejected for kept, rejected in requests]
    starts = [sum(lengths[:i]) for i in range(len(lengths) + 1)]
    ends = [start + kept - 1 for start, (kept, _) in zip(starts, requests, strict=False)]
    tokens = random_integers(seed, 0, 90, (starts[-1],))
    positions = int32([10 * i + j for i, length in enumerate(lengths) for j in range(length)])
    next_tokens = random_integers(seed + 1, 0, 90, (len(requests),))
    expected = expanded_reference(
        tokens.tolist(), positions.tolist(), next_tokens.tolist(), requests, slots, shift
    )
    outputs = npu_copy_and_expand_eagle_inputs.checked(
        tokens, positions, next_tokens, int32(starts), int32(ends), 99, -7, slots, shift,
        len(expected),
    )  # fmt: skip
    ids, new_positions, rejected, masked, sampled, mapping = (out.tolist() for out in outputs)
    assert list(zip(ids, new_positions, rejected, masked, strict=True)) == expected
    line_starts, place = [], 0
    for kept, refused_tokens in requests:
        line_starts.append(place)
        place += kept + slots + refused_tokens - (1 if shift else 0)
    assert sampled == [
        start + kept - (1 if shift else 0) + slot
        for start, (kept, _) in zip(line_starts, requests, strict=True)
        for slot in range(slots)
    ]
    if shift:
        assert mapping == [
            start + offset
            for start, length in zip(line_starts, lengths, strict=True)
            for offset in range(length)
        ]
    else:
        assert mapping == [0] * len(mapping)


def test_copied_tokens_end_at_the_input_s_last():
    outputs = npu_copy_and_expand_eagle_inputs.checked(
        int32([11, 12, 13]), int32([4, 5, 6]), int32([20]), int32([0, 3]), int32([3]),
        0, -7, 1, True, 4,
    )  # fmt: skip
    # The end lies past the request: its three shifted tokens are 12, 13, and 13 again.
    assert outputs[0].tolist() == [12, 13, 13, 20]
    assert outputs[1].tolist() == [4, 5, 6, 7]


def test_an_invalid_token_ends_an_ngram_draft():
    table = int32([1, 5, -1, 6, 1, 0]).unsqueeze(0)
    sampled = int32([1]).unsqueeze(0)
    _, _, drafts, valid = npu_ngram_spec_decode.checked(
        table, int32([5]), sampled, int32([0]), 50, 1, 1, 3
    )
    assert drafts.tolist() == [[5, -1, 6]]
    assert valid.tolist() == [1]


def test_ngram_drafts():
    table = torch.zeros(4, 12, dtype=torch.int32)
    table[0, :6] = int32([1, 2, 3, 4, 5, 1])
    table[1, :3] = int32([1, 2, 3])
    table[2, :6] = int32([7, 8, 9, 7, 8, 9])
    table[3, :6] = int32([1, 2, 9, 1, 2, 5])
    sampled = torch.tensor([[2, -1], [9, -1], [7, 8], [1, 50]], dtype=torch.int32)
    discarded = int32([0, 0, 1, 0])
    tokens, next_tokens, drafts, valid = npu_ngram_spec_decode.checked(
        table, int32([6, 3, 6, 6]), sampled, discarded, 50, 1, 3, 4
    )
    assert tokens is table
    # The shortest n-gram, here the last token alone, decides; its first occurrence counts.
    assert drafts.tolist() == [[3, 4, 5, 1], [-1] * 4, [-1] * 4, [2, 9, 1, 2]]
    assert valid.tolist() == [4, 0, 0, 4]
    assert next_tokens.tolist() == [2, 9, 9, 1]
    assert table[0, 6] == 2
    assert table[2, 6] == 0
    assert sampled.tolist() == [[2, -1], [9, -1], [-1, -1], [1, -1]]


@few
@given(
    st.lists(st.integers(0, 3), min_size=1, max_size=14),
    st.lists(st.integers(0, 3), min_size=1, max_size=3),
    st.integers(1, 3),
    st.integers(0, 2),
    st.integers(1, 4),
)
def test_ngram_drafts_are_those_of_a_search_in_text(known, sampled, min_n, more, k):
    """The judge writes tokens as letters and searches with str.find."""
    text = "".join("abcd"[token] for token in [*known, *sampled])
    expected = ""
    for size in range(min_n, min(min_n + more, len(text) - 1) + 1):
        # Found before the end: the n-gram at the end itself is no earlier one.
        start = text.find(text[-size:], 0, len(text) - 1)
        if start >= 0:
            expected = text[start + size :][:k]
            break
    table = torch.full((1, 20), 9, dtype=torch.int32)
    table[0, : len(known)] = int32(known)
    _, next_tokens, drafts, valid = npu_ngram_spec_decode.checked(
        table, int32([len(known)]), int32(sampled).unsqueeze(0), int32([0]),
        10, min_n, min_n + more, k,
    )  # fmt: skip
    assert table[0, : len(text)].tolist() == [*known, *sampled]
    assert next_tokens.tolist() == [sampled[-1]]
    assert valid.tolist() == [len(expected)]
    assert drafts[0].tolist() == ["abcd".index(x) for x in expected] + [-1] * (k - len(expected))


@few
@given(seeds, st.integers(1, 5), st.booleans())
def test_lora_products(seed, tokens, four_dims):
    adapters = random_integers(seed, -1, 3, (tokens,), torch.int64)
    x = random_tensor(seed, (tokens, 6)).half()
    shrink_weight = random_tensor(seed + 1, (3, 2, 6)).half()
    expand_weight = random_tensor(seed + 2, (3, 4, 2)).half()
    y = torch.full((tokens, 2), 5.0)
    bgmv_shrink.checked(
        x, shrink_weight.unsqueeze(1) if four_dims else shrink_weight, adapters, y, 2
    )
    out = random_tensor(seed + 3, (tokens, 7)).half()
    expected_y, expected_out = y.double().fill_(5.0), out.double()
    assert bgmv_expand.checked(y, expand_weight, adapters, out, 1, 4) is out
    for token, adapter in enumerate(adapters.tolist()):
        if adapter < 0:
            continue
        for row in range(2):
            products = (
                float(shrink_weight[adapter, row, i]) * float(x[token, i]) for i in range(6)
            )
            expected_y[token, row] = sum(products) * 2
        for row in range(4):
            expected_out[token, 1 + row] += sum(
                float(expand_weight[adapter, row, i]) * float(y[token, i]) for i in range(2)
            )
    assert_near(y, expected_y)
    assert_near(out, expected_out, 0.02)


@few
@given(seeds, st.lists(st.tuples(st.integers(-1, 2), st.integers(0, 3)), min_size=1, max_size=4))
def test_lora_products_of_sequences(seed, sequences):
    """Each sequence is (adapter, tokens); one token more belongs to none."""
    tokens = sum(length for _, length in sequences) + 1
    adapters = torch.tensor([adapter for adapter, _ in sequences])
    lengths = torch.tensor([length for _, length in sequences])
    x = random_tensor(seed, (tokens, 6)).half()
    shrink_weight = random_tensor(seed + 1, (3, 2, 6)).half()
    expand_weight = random_tensor(seed + 2, (3, 4, 2)).half()
    y, out = torch.full((tokens, 2), 5.0), random_tensor(seed + 3, (tokens, 7)).half()
    expected_out = out.double()
    sgmv_shrink.checked(x, shrink_weight, adapters, lengths, y, 2)
    assert sgmv_expand.checked(y, expand_weight, adapters, lengths, out, 1, 4) is out
    expected_y = torch.full((tokens, 2), 5.0).double()
    token = 0
    for adapter, length in sequences:
        for _ in range(length):
            if adapter >= 0:
                expected_y[token] = 2 * (shrink_weight[adapter].double() @ x[token].double())
                expected_out[token, 1:5] += expand_weight[adapter].double() @ y[token].double()
            token += 1
    assert_near(y, expected_y)
    assert_near(out, expected_out, 0.02)


def test_sgmv_gives_each_sequence_its_adapter():
    x, weight = random_tensor(0, (6, 6)).half(), random_tensor(1, (3, 2, 6)).half()
    per_token = torch.tensor([2, 2, 2, 0, -1, -1])
    sequences, lengths = torch.tensor([2, 0]), torch.tensor([3, 1])
    expected, got = torch.zeros(6, 2), torch.zeros(6, 2)
    bgmv_shrink.checked(x, weight, per_token, expected, 0.5)
    sgmv_shrink.checked(x, weight, sequences, lengths, got, 0.5)
    assert torch.equal(got, expected)
    expand_weight = random_tensor(2, (3, 4, 2)).half()
    expected, out = torch.zeros(6, 4).half(), torch.zeros(6, 4).half()
    bgmv_expand.checked(got, expand_weight, per_token, expected, 0, 4)
    sgmv_expand.checked(got, expand_weight, sequences, lengths, out, 0, 4)
    assert torch.equal(out, expected)


def test_refusals():
    with refused("_C_ascend.get_masked_input_and_mask: the bounds are"):
        get_masked_input_and_mask.checked(int32([1]), 4, 2, 0, 5, 6)
    var, update = torch.zeros(2, 3), torch.zeros(1, 3)
    with refused(r"indices reach outside var, whose shape is \(2, 3\): \[\[2\]\]"):
        npu_scatter_nd_update_v2.checked(var, torch.tensor([[2]]), update)
    with refused(r"update has shape \(1, 3\); it must be \(1,\), axes of size 1 apart"):
        npu_scatter_nd_update_v2.checked(var, torch.tensor([[0, 1]]), update)
    starts, ends = int32([0, 2]), int32([1])
    with refused("total_draft_tokens is 2; the requests need 3"):
        npu_copy_and_expand_eagle_inputs.checked(
            int32([1, 2]), int32([0, 1]), int32([3]), starts, ends, 0, 0, 1, False, 2
        )
    with refused("target_positions is int64"):
        npu_copy_and_expand_eagle_inputs.checked(
            int32([1, 2]), torch.tensor([0, 1]), int32([3]), starts, ends, 0, 0, 1, False, 3
        )
    with refused("min_n is 3; it must be from 1 to 2"):
        npu_ngram_spec_decode.checked(
            torch.zeros(1, 4, dtype=torch.int32), int32([2]),
            torch.zeros(1, 1, dtype=torch.int32), int32([0]), 9, 3, 2, 1,
        )  # fmt: skip
    with refused("x has 2 columns, y 2; shrinking needs more in x than in y"):
        half = torch.zeros(1, 2).half()
        bgmv_shrink.checked(half, torch.zeros(1, 2, 2).half(), torch.tensor([0]), half.float(), 1.0)


def test_missing_mode_fails_by_name():
    half = torch.zeros(1, 1, 1).half()
    with pytest.raises(NotImplementedError, match="batch_matmul_transpose with format_mode 'nz'"):
        batch_matmul_transpose.kernel(half, half, half, "nz")


@few
@given(seeds, st.integers(0, 5))
def test_swap_blocks_batch(seed, count):
    blocks = random_integers(seed, -100, 100, (8, 16), torch.int8)
    into = torch.zeros_like(blocks)
    expected = into.clone()
    sources = random_integers(seed, 0, 8, (count,), torch.int64)
    destinations = torch.randperm(8, generator=torch.Generator().manual_seed(seed))[:count]
    sizes = random_integers(seed + 1, 0, 17, (count,), torch.int64)
    swap_blocks_batch.checked(
        blocks.data_ptr() + sources * 16, into.data_ptr() + destinations * 16, sizes, 1
    )
    for source, destination, size in zip(
        sources.tolist(), destinations.tolist(), sizes.tolist(), strict=True
    ):
        expected[destination, :size] = blocks[source, :size]
    assert torch.equal(into, expected)


def test_swap_blocks_batch_refuses():
    none = torch.zeros(0, dtype=torch.int64)
    with refused("direction is 3"):
        swap_blocks_batch.checked(none, none, none, 3)
    with refused("int64"):
        swap_blocks_batch.checked(none.int(), none, none, 0)


def test_an_adapter_narrower_than_its_slice_is_refused():
    """As vllm-ascend calls it for the output layer when it has padded the vocabulary."""
    adapters, x = torch.zeros(1, dtype=torch.int64), torch.zeros(1, 2)
    weight, y = torch.zeros(1, 4, 2).half(), torch.zeros(1, 7).half()
    with pytest.raises(ValueError, match="weight has 4 rows and the slice is 7 columns"):
        bgmv_expand.checked(x, weight, adapters, y, 0, 7)

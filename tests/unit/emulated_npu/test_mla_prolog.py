# SPDX-License-Identifier: Apache-2.0
"""npu_mla_prolog_v2 and attention on what it writes, against loops over whole numbers."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from emulated_npu.operators.attention_fused_infer import npu_fused_infer_attention_score_v2
from emulated_npu.operators.mla_prolog import mla_prolog, npu_mla_prolog_v2
from tests.support.operators.attention_reference import causal, reference_attention
from tests.support.operators.operator_testing import refused

TRIANGLE = torch.triu(torch.ones(2048, 2048), 1).to(torch.int8)
BLOCK, BLOCKS = 128, 3
WIDTH, LOW_RANK, PLAIN, ROPE, LATENT = 32, 64, 128, 64, 512
EPSILON = 1e-5
few = settings(max_examples=5, deadline=None)


def arguments(seed, tokens, heads):
    generator = torch.Generator().manual_seed(seed)

    def whole(*shape):
        return torch.randint(-127, 128, shape, generator=generator, dtype=torch.int8)

    def scale(*shape):
        return torch.rand(shape, generator=generator) / 1000 + 1e-4

    def half(*shape):
        return torch.randn(shape, generator=generator).bfloat16()

    angles = torch.rand(tokens, ROPE // 2, generator=generator).repeat(1, 2)
    slots = torch.randperm(BLOCK * BLOCKS, generator=generator)[:tokens]
    slots[0] = -1
    return {
        "token_x": whole(tokens, WIDTH),
        "weight_dq": whole(WIDTH, LOW_RANK),
        "weight_uq_qr": whole(LOW_RANK, heads * (PLAIN + ROPE)),
        "weight_uk": half(heads, PLAIN, LATENT),
        "weight_dkv_kr": whole(WIDTH, LATENT + ROPE),
        "rmsnorm_gamma_cq": half(LOW_RANK),
        "rmsnorm_gamma_ckv": half(LATENT),
        "rope_sin": angles.sin().bfloat16(),
        "rope_cos": angles.cos().bfloat16(),
        "cache_index": slots,
        "kv_cache": torch.full((BLOCKS, BLOCK, 1, LATENT), 99, dtype=torch.int8),
        "kr_cache": torch.full((BLOCKS, BLOCK, 1, ROPE), 99.0).bfloat16(),
        "dequant_scale_x": scale(tokens, 1),
        "dequant_scale_w_dq": scale(1, LOW_RANK),
        "dequant_scale_w_uq_qr": scale(1, heads * (PLAIN + ROPE)),
        "dequant_scale_w_dkv_kr": scale(1, LATENT + ROPE),
        "quant_scale_ckv": torch.full((1, LATENT), 16.0),
        "cache_mode": "PA_NZ",
    }


def product(row, matrix, row_scale, scale):
    """One row of whole numbers times a matrix, float64."""
    return (row.double() @ matrix.double()) * scale[0].double() * float(row_scale)


def normed(row, gamma):
    mean = sum(float(value) ** 2 for value in row) / len(row)
    return row / math.sqrt(mean + EPSILON) * gamma.double()


def turned(row, cos, sin):
    """Pair (2i, 2i + 1) of a row, turned, stands at i and i + 32."""
    result = torch.zeros(ROPE, dtype=torch.float64)
    for pair in range(ROPE // 2):
        first, second = float(row[2 * pair]), float(row[2 * pair + 1])
        c, s = float(cos[pair]), float(sin[pair])
        result[pair] = first * c - second * s
        result[pair + ROPE // 2] = second * c + first * s
    return result


def in_block(cache, slot, width):
    """A row of a cache in the NZ form."""
    blocks = cache.view(BLOCKS, -1, BLOCK, width)
    return torch.cat([blocks[slot // BLOCK, part, slot % BLOCK] for part in range(blocks.shape[1])])


@few
@given(st.integers(0, 2**31), st.integers(1, 5), st.sampled_from([1, 2, 4]))
def test_queries_latents_and_rotated_keys(seed, tokens, heads):
    call = arguments(seed, tokens, heads)
    query, query_rope, latents, keys, scale = npu_mla_prolog_v2.checked(**call)
    assert query.dtype == torch.int8
    assert tuple(query.shape) == (tokens, heads, LATENT)
    written = []
    for token in range(tokens):
        x, x_scale = call["token_x"][token], call["dequant_scale_x"][token]
        cos, sin = call["rope_cos"][token], call["rope_sin"][token]
        down = normed(
            product(x, call["weight_dq"], x_scale, call["dequant_scale_w_dq"]),
            call["rmsnorm_gamma_cq"],
        )
        row_scale = float(down.abs().max()) / 127
        up = product(
            (down / row_scale).round(),
            call["weight_uq_qr"],
            row_scale,
            call["dequant_scale_w_uq_qr"],
        )
        for head in range(heads):
            part = up[head * (PLAIN + ROPE) :][: PLAIN + ROPE]
            whole = part[:PLAIN].bfloat16().double() @ call["weight_uk"][head].double()
            found = query[token, head].double() * float(scale[token, head, 0])
            # A whole number off by one, and bfloat16 before it.
            step = float(scale[token, head, 0])
            torch.testing.assert_close(found, whole, rtol=2e-2, atol=1.5 * step)
            assert int(query[token, head].abs().max()) == 127
            rope = turned(part[PLAIN:], cos, sin) * 16 / step
            found = query_rope[token, head].double()
            torch.testing.assert_close(found, rope, rtol=2e-2, atol=float(rope.abs().max()) / 64)
        slot = int(call["cache_index"][token])
        if slot < 0:
            continue
        written.append(slot)
        both = product(x, call["weight_dkv_kr"], x_scale, call["dequant_scale_w_dkv_kr"])
        latent = normed(both[:LATENT], call["rmsnorm_gamma_ckv"])
        latent = (latent * 16).round().clamp(-128, 127)
        found = in_block(latents, slot, 32).double()
        assert float((found - latent).abs().max()) <= 1
        key = turned(both[LATENT:], cos, sin)
        torch.testing.assert_close(in_block(keys, slot, 16).double(), key, rtol=1e-2, atol=1e-4)
    untouched = [slot for slot in range(BLOCK * BLOCKS) if slot not in written]
    assert all(bool((in_block(latents, slot, 32) == 99).all()) for slot in untouched[:40])
    assert latents.data_ptr() == call["kv_cache"].data_ptr()


def attention_call(generator, layout, widths, kv_lengths, heads):
    def whole(*shape):
        return torch.randint(-127, 128, shape, generator=generator, dtype=torch.int8)

    tokens = sum(widths)
    columns = -(-max(kv_lengths) // BLOCK)
    table = torch.randperm(len(widths) * columns, generator=generator)
    latents = whole(len(widths) * columns, 1, LATENT // 32, BLOCK, 32)
    ropes = torch.randn(len(widths) * columns, 1, ROPE // 16, BLOCK, 16, generator=generator)
    query, rope = whole(tokens, heads, LATENT), torch.randn(tokens, heads, ROPE) * 1000
    scales = torch.rand(tokens, heads, generator=generator) / 1000 + 1e-4
    packed = layout.startswith("TND")
    ends = torch.tensor(widths).cumsum(0).tolist()
    return {
        "query": query if packed else query.unsqueeze(1),
        "key": latents,
        "value": latents,
        "query_rope": rope.bfloat16() if packed else rope.bfloat16().unsqueeze(1),
        "key_rope": ropes.bfloat16(),
        "dequant_scale_query": scales if packed else scales.unsqueeze(1),
        "dequant_scale_key": torch.tensor([0.03]),
        "dequant_scale_value": torch.tensor([0.05]),
        "query_quant_mode": 3,
        "num_query_heads": heads,
        "num_key_value_heads": 1,
        "input_layout": layout,
        "sparse_mode": 3 if packed else 0,
        "atten_mask": TRIANGLE if packed else None,
        "softmax_scale": 0.07,
        "block_table": table.view(len(widths), columns).int(),
        "block_size": BLOCK,
        "actual_seq_qlen": ends if packed else None,
        "actual_seq_kvlen": kv_lengths,
    }


@few
@given(
    st.integers(0, 2**31),
    st.sampled_from(["TND_NTD", "TND", "BSND_NBSD", "BSND"]),
    st.sampled_from([1, 4]),
)
def test_attention_with_whole_numbers(seed, layout, heads):
    generator = torch.Generator().manual_seed(seed)
    packed = layout.startswith("TND")
    widths, kv_lengths = ([2, 1, 4], [5, 130, 4]) if packed else ([1, 1], [140, 3])
    call = attention_call(generator, layout, widths, kv_lengths, heads)
    output, _ = npu_fused_infer_attention_score_v2.checked(**call)
    assert output.dtype == torch.bfloat16
    output = output.reshape(heads, -1, LATENT) if "_N" in layout else output.flatten(0, -3)
    rows = output if "_N" not in layout else output.transpose(0, 1)
    query, rope = call["query"].flatten(0, -3), call["query_rope"].flatten(0, -3)
    scales = call["dequant_scale_query"].flatten(0, -2)
    start = 0
    for request, (width, length) in enumerate(zip(widths, kv_lengths, strict=True)):
        blocks = call["block_table"][request].tolist()

        def gathered(cache, length=length, blocks=blocks):
            # Positions of a request one by one.
            return torch.stack(
                [cache[blocks[p // BLOCK], 0, :, p % BLOCK].flatten() for p in range(length)]
            ).double()

        latents, ropes = gathered(call["key"]), gathered(call["key_rope"])
        keys = torch.cat([latents, ropes], -1).unsqueeze(1) * 0.03
        part = slice(start, start + width)
        queries = torch.cat([query[part].double(), rope[part].double()], -1)
        queries = queries * scales[part].double().unsqueeze(-1)
        visible = causal(width, length)
        expected, _ = reference_attention(queries, keys, latents.unsqueeze(1) * 0.05, 0.07, visible)
        torch.testing.assert_close(rows[part].double(), expected, rtol=1e-2, atol=2e-2)
        start += width


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("query_quant_mode", lambda _: 0, "query_quant_mode is 0"),
        ("input_layout", lambda _: "BNSD", "input_layout BNSD"),
        ("dequant_scale_key", lambda given: given.repeat(2), "dequant_scale_key"),
        ("dequant_scale_query", lambda given: given[:, :1], "dequant_scale_query"),
        ("dequant_scale_value", lambda _: None, "dequant_scale_value is None"),
        ("query_rope", lambda given: given.half(), "query_rope"),
        ("key_rope", lambda given: given.flatten(2).unflatten(2, (64, -1)), "key_rope"),
    ],
)
def test_attention_refuses(name, change, message):
    call = attention_call(torch.Generator().manual_seed(1), "TND_NTD", [2, 1], [5, 6], 4)
    call[name] = change(call[name])
    with refused(message):
        npu_fused_infer_attention_score_v2.checked(**call)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("weight_uk", lambda given: given.float(), "weight_uk"),
        ("cache_index", lambda given: given.int(), "cache_index"),
        ("kr_cache", lambda given: given[:2], "blocks"),
        ("quant_scale_ckv", lambda given: given[:, :1], "quant_scale_ckv"),
        ("kv_cache", lambda given: given.view(-1, 64, 1, LATENT), "kv_cache"),
    ],
)
def test_prolog_refuses(name, change, message):
    call = arguments(3, 2, 2)
    call[name] = change(call[name])
    with refused(message):
        npu_mla_prolog_v2.checked(**call)


MODES = {"weight_quant_mode": 2, "kv_cache_quant_mode": 1, "query_quant_mode": 1}


@pytest.mark.parametrize("shape", [(1,), (1, 1)])
def test_third_version_computes_the_same(shape):
    call, other = arguments(3, 4, 2), arguments(3, 4, 2)
    query, rope, _, _, scale = npu_mla_prolog_v2.checked(**call)
    other["quant_scale_ckv"] = other["quant_scale_ckv"][:, :1].reshape(shape)
    found = mla_prolog.checked(**other, **MODES)
    for expected, part in zip((query, rope, scale), found, strict=False):
        assert torch.equal(expected, part)
    assert torch.equal(call["kv_cache"], other["kv_cache"])
    assert torch.equal(call["kr_cache"], other["kr_cache"])
    with refused("one scale"):
        mla_prolog.checked(**call, **MODES)


def test_prolog_says_what_it_lacks():
    call = arguments(3, 2, 2)
    with pytest.raises(NotImplementedError, match="PA_BSND"):
        npu_mla_prolog_v2(**{**call, "cache_mode": "PA_BSND"})
    with pytest.raises(NotImplementedError, match=r"without dequant_scale_x, smooth"):
        npu_mla_prolog_v2(**{**call, "dequant_scale_x": None})
    with pytest.raises(NotImplementedError, match=r"quantisation \(2, 0, 0\)"):
        mla_prolog(**call, weight_quant_mode=2)

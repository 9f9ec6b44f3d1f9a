# SPDX-License-Identifier: Apache-2.0
"""The classes made from vllm-ascend's backends, without an engine."""

from types import SimpleNamespace

import pytest
import torch
import vllm_ascend.ops  # noqa: F401 - first of vllm-ascend: its modules import each other in circles
from vllm_ascend.attention.attention_v1 import (
    AscendAttentionState,
    AscendC8AttentionBackendImpl,
)
from vllm_ascend.attention.mla_v1 import AscendMLAImpl

from mkv_ascend.adapters.common.attention.backends import backend_class
from mkv_ascend.adapters.common.attention.building import TARGET
from mkv_ascend.adapters.common.backends import flash_attention_3, mla
from mkv_ascend.adapters.common.patches import quantized
from mkv_ascend.attention import catalog
from tests.support import hosts


class StockMLA:
    """Stands for vllm-ascend's implementation; answers with the dtypes that it was handed."""

    def _compute_prefill_context(self, q_nope, q_pe, cache, rope_size):
        return q_nope.dtype, q_pe.dtype, rope_size

    def _forward_prefill(self, q_nope):
        return "stock"


@pytest.mark.parametrize(
    ("cache_dtype", "expected"),
    [
        (torch.float16, torch.float16),
        (torch.bfloat16, torch.bfloat16),
        (torch.int8, torch.bfloat16),
    ],
    ids=["float16", "bfloat16", "quantised"],
)
def test_cached_context_is_attended_to_in_the_dtype_of_the_cache(cache_dtype, expected):
    """vllm-ascend gathers the cache into a buffer of the queries' dtype, always bfloat16."""
    query = torch.ones(1, dtype=torch.bfloat16)
    cache = (torch.ones(1, dtype=cache_dtype), torch.ones(1, dtype=cache_dtype))
    implementation = mla.implementation(StockMLA)()
    answer = implementation._compute_prefill_context(query, query, cache, 64)
    assert answer == (expected, expected, 64)


def test_a_half_precision_prefill_is_vllm_ascends_own():
    implementation = mla.implementation(StockMLA)()
    assert implementation._forward_prefill(torch.ones(1, dtype=torch.float16)) == "stock"


def test_a_prefill_in_float32_is_not_rounded():
    """vllm-ascend converts queries, keys and values to bfloat16, which has 8 bits."""
    lengths, heads = (3, 5), 4
    torch.manual_seed(0)
    sizes = {"q_nope": 128, "q_pe": 64, "k_nope": 128, "k_pe": 64, "value": 128}
    parts = {name: torch.randn(sum(lengths), heads, size) for name, size in sizes.items()}
    implementation = object.__new__(mla.implementation(AscendMLAImpl))
    vars(implementation).update(
        num_heads=heads, head_padding=0, v_head_dim=128, qk_rope_head_dim=64, scale=192**-0.5
    )
    prefill = SimpleNamespace(
        actual_seq_lengths_q=[3, 8],
        attn_mask=torch.ones(2048, 2048, dtype=torch.int8, device="npu").triu(1),
        chunked_context=None,
    )
    cache = (torch.zeros(1, device="npu"),) * 2
    arguments = [part.to("npu") for part in parts.values()]
    found = implementation._forward_prefill(*arguments, cache, SimpleNamespace(prefill=prefill))
    query, key = (
        torch.cat((parts[f"{name}_nope"], parts[f"{name}_pe"]), -1).double() for name in "qk"
    )
    expected = torch.cat(
        [
            torch.nn.functional.scaled_dot_product_attention(
                *(part.transpose(0, 1) for part in of_request), is_causal=True
            ).transpose(0, 1)
            for of_request in zip(
                *(part.split(lengths) for part in (query, key, parts["value"].double())),
                strict=True,
            )
        ]
    )
    torch.testing.assert_close(found.cpu().double(), expected.flatten(1), rtol=1e-5, atol=1e-5)


class StockFlash3:
    def forward_impl(self):
        raise AssertionError("not replaced")

    def _flash_attn_with_kvcache(self, query, tables, starts, lengths, causal, longest):
        self.call = (tables.tolist(), starts.tolist(), lengths.tolist(), causal, longest)
        return query + 1


def test_flash_attention_3_takes_all_requests_in_one_causal_call_and_leaves_padding():
    metadata = SimpleNamespace(
        actual_seq_lengths_q=[4, 5],
        block_tables=torch.tensor([[1], [2], [0]]),
        query_start_loc=torch.tensor([0, 4, 5, 5]),
        seq_lens=torch.tensor([9, 7, 0]),
        causal=True,
        max_query_len=4,
    )
    query, output = torch.zeros(6, 1, 2), torch.full((6, 1, 2), -1.0)
    implementation = flash_attention_3.implementation(StockFlash3)()
    answer = implementation.forward_impl(query, None, None, None, metadata, output)
    assert implementation.call == ([[1], [2]], [0, 4, 5], [9, 7], True, 4)
    assert answer is output
    assert output[:, 0, 0].tolist() == [1, 1, 1, 1, 1, -1]


def test_a_verify_step_of_method_mtp_converts_no_context_of_8_bits(monkeypatch):
    """vllm-ascend makes plain keys and values of all that a request has, for each step anew."""
    monkeypatch.setattr(quantized, "_EXTRA_CTX", SimpleNamespace(capturing=False))
    torch.manual_seed(0)
    heads, size, block, verified = 2, 128, 128, 4
    # Form PA_NZ: blocks, key heads, parts of a head, tokens, 32 channels.
    stored = torch.randint(-127, 128, (2, 3, 1, size // 32, block, 32), dtype=torch.int8)
    scales = 2.0 ** torch.randint(-7, -4, (2, 1, 1, size))
    keys, values = (stored.permute(0, 1, 4, 2, 3, 5).reshape(2, 3, block, size) * scales).unbind()
    implementation = object.__new__(AscendC8AttentionBackendImpl)
    cache = stored.view(2, 3, block, 1, size).npu()
    vars(implementation).update(
        key_cache=cache[0], value_cache=cache[1], num_heads=heads, num_kv_heads=1, head_size=size
    )
    implementation.scale = size**-0.5
    tables, lengths = torch.tensor([[2, 0], [1, 0]], dtype=torch.int32), [130, 9]
    metadata = SimpleNamespace(
        attn_state=AscendAttentionState.SpecDecoding,
        causal=True,
        actual_seq_lengths_q=[verified, 2 * verified],
        seq_lens_list=lengths,
        block_tables=tables.npu(),
        attn_mask=torch.ones(2048, 2048, dtype=torch.int8, device="npu").triu(1),
    )
    key_scale, value_scale = scales.bfloat16().npu()
    layer = SimpleNamespace(_c8_k_scale=key_scale, _c8_v_scale=value_scale)
    query = torch.randn(2 * verified, heads, size, dtype=torch.bfloat16)
    output = torch.zeros_like(query, device="npu")
    replaced = quantized._Replacements(lambda *_: pytest.fail("nothing is captured"))
    replaced.fused(
        lambda *_: pytest.fail("the context is converted"),
        *(implementation, query.npu(), None, None, metadata, output, layer),
    )
    for request, (table, length) in enumerate(zip(tables.tolist(), lengths, strict=True)):
        rows = slice(request * verified, (request + 1) * verified)
        key, value = (each[table].flatten(0, 1)[:length] for each in (keys, values))
        scores = query[rows].float() @ key.T * implementation.scale
        ahead = torch.ones(verified, length).triu(length - verified + 1).bool()[:, None]
        expected = scores.masked_fill(ahead, -torch.inf).softmax(-1) @ value
        torch.testing.assert_close(output[rows].cpu().float(), expected, rtol=0.02, atol=0.02)


def test_backends_of_mla_answer_what_vllms_layer_asks():
    for entry in catalog.entries():
        if entry.name in ("mla", "sparse_mla"):
            assert backend_class(entry, TARGET).is_mla(), entry.name


mended = hosts.only_on(
    "vllm_ascend_0_23", "0.30.0rc2's builder of sparse MLA reads the block size of its spec"
)
ASKED_OF_PARALLELISM = (
    "enable_cp",
    "enable_dcp",
    "enable_dsa_cp",
    "enable_sfa_dcp_replicated_indexer",
    "is_pcp_decode_sharding_enabled",
)
"""What a builder's module asks of it, by any host."""


@pytest.mark.parametrize(
    ("name", "module"),
    [
        pytest.param("mla", "mla_v1", id="mla"),
        pytest.param("sparse_mla", "sfa_v1", id="sparse_mla", marks=mended),
    ],
)
def test_builders_of_mla_take_the_block_size_of_their_group(name, module, monkeypatch):
    """Stock beside ours: vllm-ascend reads the one block size of the cache configuration."""
    if name == "sparse_mla":
        hosts.module("patches.attention").read_it_from_the_group()
    for parallel in ASKED_OF_PARALLELISM:
        place = f"vllm_ascend.attention.{module}.{parallel}"
        monkeypatch.setattr(place, lambda *_: False, raising=False)
    adapted = backend_class(catalog.find(name), TARGET).get_builder_cls()
    stock = adapted.__mro__[1]

    def initialise(self, *args, **kwargs):
        self.device = "cpu"
        self.model_config = config.model_config

    monkeypatch.setattr(stock.__mro__[1], "__init__", initialise)
    config = mla_config(block_size=128)
    spec = SimpleNamespace(block_size=512)
    assert stock(spec, ["layer"], config, "cpu").block_size == 128, "vllm-ascend mended bug 17"
    builder = adapted(spec, ["layer"], config, "cpu")
    assert (builder.block_size, builder.max_blocks) == (512, 2)
    assert config.cache_config.block_size == 128


def mla_config(block_size):
    """The fields that the builders' constructors read."""
    return SimpleNamespace(
        cache_config=SimpleNamespace(block_size=block_size),
        model_config=SimpleNamespace(
            max_model_len=1024,
            hf_text_config=SimpleNamespace(qk_rope_head_dim=64),
            get_head_size=lambda: 576,
            dtype=torch.bfloat16,
        ),
        scheduler_config=SimpleNamespace(
            enable_chunked_prefill=True, max_num_seqs=8, max_num_batched_tokens=512
        ),
        speculative_config=None,
        parallel_config=SimpleNamespace(prefill_context_parallel_size=1),
        compilation_config=SimpleNamespace(
            static_forward_context={
                "layer": SimpleNamespace(impl=SimpleNamespace(use_mla_rope=True))
            }
        ),
    )


def test_one_class_for_each_backend():
    entry = catalog.find("mla")
    assert backend_class(entry, TARGET) is backend_class(entry, TARGET)

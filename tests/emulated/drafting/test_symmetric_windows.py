# SPDX-License-Identifier: Apache-2.0
"""Windows of rows that see those behind them, of one layer and against plain loops. No engine."""

from itertools import accumulate
from types import SimpleNamespace

import pytest
import torch
import vllm_ascend.ops  # noqa: F401  before the rest of it: its modules import in a circle
from vllm_ascend.attention.attention_v1 import AscendAttentionBackendImpl, AscendAttentionState

from tests.support import hosts
from tests.support.marks import needs_float32
from tests.support.operators.attention_reference import PagedCache, reference_attention, window

hosts.skip_module_unless("vllm_ascend_0_30", "vLLM 0.23.0 leaves windows of such a head out")

symmetric_windows = hosts.module("patches.attention")

HEADS, KEY_HEADS, SIZE, SCALE = 4, 2, 128, 0.1
ROWS, LENGTHS = (6, 6, 6), (6, 40, 131)
"""Of three requests: rows, and keys with those of the rows. The last request has two blocks."""
PADDING = 2


def layer(width, keys, values, sinks):
    """A layer's implementation with a window of ``width`` tokens."""
    made = object.__new__(symmetric_windows.implementation(AscendAttentionBackendImpl))
    vars(made).update(
        num_heads=HEADS,
        num_kv_heads=KEY_HEADS,
        scale=SCALE,
        # As ``window bound`` passes it.
        sliding_window=width - 1,
        sinks=None if sinks is None else sinks.to("npu"),
        key_cache=keys.cache.to("npu"),
        value_cache=values.cache.to("npu"),
        use_bnsd_kv_cache=False,
        _layer_name="layers.0",
    )
    return made


@needs_float32
@pytest.mark.parametrize("capturing", [False, True])
@pytest.mark.parametrize("with_sinks", [False, True])
@pytest.mark.parametrize("width", [2, 3, 33, 200])
def test_a_row_sees_as_far_ahead_as_back(width, with_sinks, capturing, monkeypatch):
    """The shorter windows end within the rows, on both sides."""
    context = SimpleNamespace(capturing=capturing, is_draft_model=True)
    monkeypatch.setattr(symmetric_windows, "_EXTRA_CTX", context)
    generator = torch.Generator().manual_seed(width)
    keys = PagedCache(generator, LENGTHS, KEY_HEADS, SIZE, 128)
    values = keys.same_places(generator, SIZE)
    query = torch.randn(sum(ROWS) + PADDING, HEADS, SIZE, generator=generator)
    sinks = torch.randn(HEADS, generator=generator).bfloat16() if with_sinks else None
    metadata = SimpleNamespace(
        causal=False,
        attn_mask=None,
        attn_state=AscendAttentionState.ChunkedPrefill,
        actual_seq_lengths_q=[*accumulate(ROWS)],
        seq_lens_list=[*LENGTHS],
        block_tables=keys.table.to("npu"),
    )
    output = torch.full_like(query, -1.0, device="npu")
    layer(width, keys, values, sinks).forward_fused_infer_attention(
        query.to("npu"), None, None, metadata, output
    )
    *of_requests, padding = output.cpu().split([*ROWS, PADDING])
    assert (padding == -1).all(), "rows of padding were written"
    for index, (rows, found) in enumerate(
        zip(query[: sum(ROWS)].split(ROWS), of_requests, strict=True)
    ):
        seen = window(ROWS[index], LENGTHS[index], width - 1, width - 1)
        expected, _ = reference_attention(
            rows, keys.tokens[index], values.tokens[index], SCALE, seen, sinks
        )
        torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-5)


def test_causal_rows_are_vllm_ascends_own():
    class Stock:
        def forward_fused_infer_attention(self, *given):
            return given

    given = ("query", "key", "value", SimpleNamespace(causal=True), "output", "cache")
    made = symmetric_windows.implementation(Stock)()
    assert made.forward_fused_infer_attention(*given) == given

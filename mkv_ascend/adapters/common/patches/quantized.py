# SPDX-License-Identifier: Apache-2.0
"""Keys and values of 8 bits in verify steps, and a draft's layers among quantised weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch_npu
from vllm_ascend.ascend_forward_context import _EXTRA_CTX
from vllm_ascend.attention.attention_v1 import AscendAttentionState

from mkv_ascend.adapters.patching import Patch, record
from mkv_ascend.attention.padded_rows import padded_rows
from mkv_ascend.drafting.draft import shallow_copy

# Attention of several tokens per request to keys and values of 8 bits (C8).
#
# vllm-ascend attends to such a cache for one token per request. In a verify step, and in the
# first pass of a draft, a request has up to K + 1. Its launch then takes each token for a
# request, so that tokens read the keys of other requests.
#
# npu_fused_infer_attention_score documents 1 to 16 queries per request on such a cache, in layout
# BSND with the causal mask. So the tokens of a batch are viewed as rows of requests, or brought
# there where requests have unequal numbers.

Capture = Callable[[Any, Any, torch.Tensor, Any, torch.Tensor], torch.Tensor]
"""Captures a launch of (implementation, layer, query, metadata, output); gives the output."""

_OF_IMPLEMENTATION = "vllm_ascend.attention.attention_v1:AscendC8AttentionBackendImpl."

verify_steps = Patch(
    record(
        name="verify steps on keys and values of 8 bits",
        target=(
            "vllm_ascend.attention.attention_v1:AscendC8AttentionBackendImpl._forward_c8_chunked_prefill",
            "vllm_ascend.attention.attention_v1:AscendC8AttentionBackendImpl._forward_c8_fused_infer_attention",
            "vllm_ascend.attention.attention_v1:AscendC8AttentionBackendImpl.full_graph_fia",
            "vllm_ascend.attention.attention_v1:AscendC8AttentionBackendImpl._nz_5d_view",
        ),
        reads=(
            "vllm_ascend.attention.attention_v1:AscendC8AttentionBackendImpl.forward",
            "vllm_ascend.attention.attention_v1:AscendC8AttentionBackendImpl._prepare_c8_scales",
            "vllm_ascend.attention.attention_v1:AscendC8AttentionBackendImpl._reshape_and_cache",
            "vllm_ascend.attention.attention_v1:AscendAttentionMetadataBuilder.build",
        ),
    )
)
"""Applied by the host's ``install``, with what captures its launches."""


def launch_arguments(
    implementation: Any, layer: Any, query: torch.Tensor, mask: torch.Tensor | None
) -> dict[str, Any]:
    """Arguments of a launch, except lengths and block table.

    Args:
        implementation: vllm-ascend's of the layer.
        query: ``[requests, queries of a request, heads, head size]``.
        mask: the causal mask; not given for one query per request.
    """
    size, heads = implementation.key_cache.shape[1], implementation.num_kv_heads
    channels = heads, implementation.head_size
    several = query.shape[1] > 1
    return {
        "query": query,
        "key": implementation._nz_5d_view(implementation.key_cache, size),
        "value": implementation._nz_5d_view(implementation.value_cache, size),
        "key_antiquant_scale": layer._c8_k_scale.view(channels),
        "value_antiquant_scale": layer._c8_v_scale.view(channels),
        "key_antiquant_mode": 0,
        "value_antiquant_mode": 0,
        "num_heads": implementation.num_heads,
        "num_key_value_heads": heads,
        "scale": implementation.scale,
        "input_layout": "BSND",
        "block_size": size,
        "inner_precise": 1,
        "sparse_mode": 3 if several else 0,
        "atten_mask": mask if several else None,
    }


def attend(
    implementation: Any, layer: Any, query: torch.Tensor, metadata: Any, output: torch.Tensor
) -> None:
    """Attention of requests that all have few tokens; ``metadata`` is theirs alone."""
    ends = metadata.actual_seq_lengths_q
    counts = [end - start for start, end in zip([0, *ends], ends, strict=False)]
    widest, requests = max(counts), len(counts)
    tokens = ends[-1]
    places = None
    if min(counts) == widest:
        rows = query[:tokens].view(requests, widest, *query.shape[1:])
    else:
        taken, places = (_on_device(rows, query) for rows in padded_rows(counts))
        rows = query[taken].view(requests, widest, *query.shape[1:])
    attended, _ = torch_npu.npu_fused_infer_attention_score(
        **launch_arguments(implementation, layer, rows, metadata.attn_mask),
        block_table=metadata.block_tables[:requests],
        actual_seq_lengths=counts,
        actual_seq_lengths_kv=metadata.seq_lens_list[:requests],
    )
    attended = attended.flatten(0, 1)
    output[:tokens] = attended if places is None else attended[places]


def _on_device(rows: list[int], like: torch.Tensor) -> torch.Tensor:
    return torch.tensor(rows).pin_memory().to(like.device, non_blocking=True)


def install(capture: Capture) -> None:
    """Replace what attends to a cache of 8 bits. Idempotent.

    Args:
        capture: how this host captures a launch.
    """
    if not verify_steps.functions:
        made = _Replacements(capture)
        verify_steps.functions.update(
            {
                f"{_OF_IMPLEMENTATION}{name}": function
                for name, function in (
                    ("_forward_c8_chunked_prefill", made.chunked),
                    ("_forward_c8_fused_infer_attention", made.fused),
                    ("full_graph_fia", made.captured),
                    ("_nz_5d_view", _view_of_its_blocks),
                )
            }
        )
    verify_steps.apply()


class _Replacements:
    """Methods of vllm-ascend's implementation; each takes the original and its arguments."""

    def __init__(self, capture: Capture) -> None:
        self._capture = capture

    def chunked(
        self,
        original: Any,
        implementation: Any,
        query: torch.Tensor,
        key: torch.Tensor | None,
        value: torch.Tensor | None,
        metadata: Any,
        output: torch.Tensor,
        layer: Any,
    ) -> Any:
        """``_forward_c8_chunked_prefill``: requests that decode come first, then chunks."""
        if not metadata.causal:
            return original(implementation, query, key, value, metadata, output, layer)
        if _EXTRA_CTX.capturing:
            return self._capture(implementation, layer, query, metadata, output)
        decodes, tokens = metadata.num_decodes, metadata.num_decode_tokens
        if tokens:
            attend(implementation, layer, query, requests_of(metadata, 0, decodes), output)
        if metadata.num_prefills:
            rest = requests_of(metadata, decodes, len(metadata.actual_seq_lengths_q))
            key, value = (None if rows is None else rows[tokens:] for rows in (key, value))
            original(implementation, query[tokens:], key, value, rest, output[tokens:], layer)
        return output

    def fused(
        self,
        original: Any,
        implementation: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        metadata: Any,
        output: torch.Tensor,
        layer: Any,
    ) -> Any:
        """``_forward_c8_fused_infer_attention``, which verifies drafts of method mtp."""
        verifies = metadata.attn_state is AscendAttentionState.SpecDecoding
        if not (verifies and metadata.causal):
            return original(implementation, query, key, value, metadata, output, layer)
        if _EXTRA_CTX.capturing:
            return self._capture(implementation, layer, query, metadata, output)
        attend(implementation, layer, query, metadata, output)
        return output

    def captured(
        self,
        original: Any,
        implementation: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        metadata: Any,
        output: torch.Tensor,
        layer: Any = None,
    ) -> Any:
        """``full_graph_fia``; launches with one query per request stay vllm-ascend's."""
        tokens = metadata.actual_seq_lengths_q[-1]
        if tokens == len(metadata.actual_seq_lengths_q) or not metadata.causal:
            return original(implementation, query, key, value, metadata, output, layer)
        return self._capture(implementation, layer, query, metadata, output), tokens


def _view_of_its_blocks(
    original: Any, implementation: Any, cache: torch.Tensor, block_size: int
) -> torch.Tensor:
    """The view of a cache in blocks of its own size; a view of it stays what it is."""
    own = cache.shape[1] if cache.dim() == 4 else block_size
    view: torch.Tensor = original(implementation, cache, own)
    return view


def requests_of(metadata: Any, first: int, last: int) -> Any:
    """Metadata of the requests from ``first`` to before ``last`` alone, all of one kind."""
    given = shallow_copy(metadata)
    ends = metadata.actual_seq_lengths_q
    before = ends[first - 1] if first else 0
    given.actual_seq_lengths_q = [end - before for end in ends[first:last]]
    given.seq_lens_list = metadata.seq_lens_list[first:last]
    given.block_tables = metadata.block_tables[first:last]
    given.num_decodes = given.num_decode_tokens = 0
    return given


# The names of a draft's layers in the description of its quantised weights.

PREFIX = "draft_model."
"""What vLLM puts before the names of layers of a draft that is a model of its own."""


def by_name_in_checkpoint(
    original: Any, config: Any, layer: Any, prefix: str, *rest: Any, **named: Any
) -> Any:
    """``get_quant_method`` of a configuration, by the layer's name in the checkpoint.

    vllm-ascend's layers with experts give a further argument, by its name.
    """
    return original(config, layer, prefix.removeprefix(PREFIX), *rest, **named)

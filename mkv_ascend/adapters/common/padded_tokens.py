# SPDX-License-Identifier: Apache-2.0
"""Tokens that fill a batch up: for ranks that share its tokens out, or to the size of a graph.

Attention writes no output for tokens of no request: that memory holds whatever was there. Ranks
that share experts multiply such rows by 0 when they add up what experts said of others, and NaN
stays NaN. So a request of padding stands for these tokens. vllm-ascend adds one, too, where it
launches attention from a graph. Not where attention runs between pieces of graphs: there the memory
is a pool's, and what lay in it were row indices of experts, -1 for those of other ranks, which
reads as NaN. And 0.30.0rc2 asks whether ranks share tokens out where no configuration is set, so
that the answer is always no.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch


def cover_padding(runner: Any, asked: dict[str, Any]) -> None:
    """Add a request for tokens of padding that none of the batch has.

    Args:
        runner: vllm-ascend's; its starts of queries are changed.
        asked: arguments of its ``_build_attention_metadata``; changed if there are such tokens.
    """
    if asked.get("for_cudagraph_capture") or runner.model_config.use_mla:
        return
    from vllm_ascend.utils import enable_sp

    if not enable_sp(runner.vllm_config):
        return
    count = asked["num_reqs"]
    tokens = asked.get("num_tokens_padded") or asked["num_tokens"]
    requests = asked.get("num_reqs_padded") or count
    starts = runner.query_start_loc
    if starts.np[requests] < tokens:
        asked["num_reqs_padded"] = runner._pad_query_start_loc_for_fia(
            starts, tokens, requests, count
        )


def cover_rows(config: Any, metadata: Any, rows: int) -> Any:
    """What layers attend by, with requests of padding for rows that none of the batch has.

    Only dense layers leave such rows unwritten. ``build`` of vllm-ascend fills lengths and tables
    up in the same way, where the runner has counted such a request.

    Args:
        config: vLLM's.
        metadata: by layer; as it is where ranks share no experts, or a batch runs in parts.
        rows: of the pass.
    """
    parallel = config.parallel_config
    shares = parallel.decode_context_parallel_size * parallel.prefill_context_parallel_size > 1
    if not parallel.enable_expert_parallel or shares or not isinstance(metadata, Mapping):
        return metadata
    from vllm_ascend.attention.attention_v1 import AscendMetadata

    # Layers share metadata, and keep sharing it.
    covered = {
        id(one): _covered(one, rows) for one in metadata.values() if isinstance(one, AscendMetadata)
    }
    return {name: covered.get(id(one), one) for name, one in metadata.items()}


def _covered(metadata: Any, rows: int) -> Any:
    ends = metadata.actual_seq_lengths_q
    if not ends or ends[-1] >= rows:
        return metadata
    # A decode has one token for each request, and some operators count on that.
    decodes = metadata.attn_state.name == "DecodeOnly"
    added = list(range(ends[-1] + 1, rows + 1)) if decodes else [rows]
    count, lengths, tables = len(added), metadata.seq_lens, metadata.block_tables
    return replace(
        metadata,
        actual_seq_lengths_q=[*ends, *added],
        seq_lens_list=[*metadata.seq_lens_list, *[1] * count],
        seq_lens=torch.cat([lengths, lengths.new_ones(count)]),
        block_tables=torch.cat([tables, tables.new_zeros((count, tables.shape[1]))]),
    )

# SPDX-License-Identifier: Apache-2.0
"""Recurrent states in model runner V2: the order of rows, what they verify, graphs of each K."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch

from mkv_ascend.adapters.patching import patch, record

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vllm_ascend.worker.v2.input_batch import AscendInputBatch

    from mkv_ascend.adapters.common.rebuilding_states import BatchTokens
    from mkv_ascend.drafting.lost_states import Chunk


# The order of a batch's rows in model runner V2: those that decode before chunks of prompts.


@patch(
    name="rows that decode come first in model runner V2",
    target="vllm.v1.worker.gpu.model_runner:sort_batch_req_ids",
    reads=(
        "vllm.v1.attention.backends.utils:split_decodes_and_prefills",
        "vllm.v1.attention.backends.mamba_attn:"
        "BaseMambaAttentionMetadataBuilder._compute_common_metadata",
    ),
)
def sort_rows(
    original: Callable[..., list[str]],
    num_tokens_per_req: Mapping[str, int],
    draft_tokens: Mapping[str, list[int]],
    decode_query_len: int,
    **others: Any,
) -> list[str]:
    """Rows with drafts, then those without by their tokens: a row that decodes has one.

    A chunk of one token may stand before them. Builders take it for a row that decodes where it has
    a state, and where it has none, the scheduler lists its request behind all that run.
    """
    order = original(num_tokens_per_req, draft_tokens, decode_query_len, **others)
    with_drafts = [request for request in order if draft_tokens.get(request)]
    without = [request for request in num_tokens_per_req if not draft_tokens.get(request)]
    return with_drafts + sorted(without, key=num_tokens_per_req.__getitem__)


# Rows whose recurrent states stand where a verification left them, in model runner V2.


def name_rows(common: Any, drafts: torch.Tensor, k: int) -> torch.Tensor:
    """Name every row that decodes: those without drafts may have had some in the step before.

    vllm-ascend names only rows with drafts to the builder of gated delta nets. How many tokens were
    accepted only the device knows, so a row that goes on behind a single token is named as well;
    its state stands in the same column either way.

    A row of more than K + 1 tokens is that of a dummy batch: a graph of more tokens than all
    requests verify is captured with rows as long as it takes.

    Args:
        common: vllm-ascend's metadata of the batch.
        drafts: number of drafts to verify of each row, int [rows]; -1 for other rows.
        k: most drafts of a row.

    Returns:
        The same, with 1 for rows that decode without drafts: the builder sees no verification where
        all rows have 0.
    """
    lengths = common.query_start_loc_cpu[: len(drafts) + 1].diff()
    decoding = ~common.is_prefilling[: len(drafts)] & (lengths > 0) & (lengths <= k + 1)
    return torch.where(decoding, drafts.clamp(min=1), drafts)


# A draft's recurrent states behind prefix hits, in model runner V2.
#
# What the target does with its own states there, and how the draft rebuilds its own, is the same
# in both runners (``common/patches/recurrent.py``, ``rebuilding_states.py``).

REQUESTS_BEHIND_HITS = record(
    name="states of a draft behind prefix hits in model runner V2",
    target="vllm_ascend.worker.v2.model_runner:NPUModelRunner.execute_model",
    reads=(
        "vllm.v1.worker.gpu.states:RequestState.add_request",
        "vllm.v1.worker.gpu.model_runner:GPUModelRunner.add_requests",
    ),
)


def tokens_on_the_device(batch: AscendInputBatch, ids: torch.Tensor) -> BatchTokens:
    """Of this step, from ``ids``: the runner's, int32 ``[requests of the engine, tokens]``."""
    from mkv_ascend.adapters.common.rebuilding_states import BatchTokens

    places = batch.idx_mapping_np

    def of(chunks: Sequence[Chunk]) -> torch.Tensor:
        return torch.cat([ids[places[chunk.row], chunk.start : chunk.end] for chunk in chunks])

    return BatchTokens({request: row for row, request in enumerate(batch.req_ids)}, of)


# Buffers of graphs with gated delta nets whose rows are padded, on model runner V2.


@patch(
    name="buffers of padded rows in graphs of each K",
    target="vllm_ascend.ops.gdn_attn_builder:AscendGDNAttentionMetadataBuilder._can_pad_spec_decode",
    reads=(
        "vllm.v1.attention.backends.gdn_attn:GDNAttentionMetadataBuilder.__init__",
        "vllm_ascend.ops.gdn_attn_builder:AscendGDNAttentionMetadataBuilder"
        "._pad_spec_decode_metadata",
    ),
)
def has_room(
    original: Callable[[Any, int, int], bool], builder: Any, requests: int, tokens: int
) -> bool:
    """Whether the buffers hold so many requests and tokens: they have 1 + K for each request."""
    if original(builder, requests, tokens):
        return True
    room: int = builder.spec_token_indx.numel()
    return requests <= builder.decode_cudagraph_max_bs and tokens <= room


# Graphs of targets with Mamba2 layers or short convolutions of each K, on model runner V2.


@patch(
    name="captures of fewer drafts beside states",
    target="vllm.v1.attention.backends.mamba_attn:"
    "BaseMambaAttentionMetadataBuilder.build_for_cudagraph_capture",
    reads=(
        "vllm.v1.attention.backends.mamba_attn:"
        "BaseMambaAttentionMetadataBuilder._compute_common_metadata",
        "vllm.v1.attention.backends.mamba_attn:"
        "BaseMambaAttentionMetadataBuilder._update_metadata_for_cudagraph_capture",
        "vllm.v1.attention.backends.utils:split_decodes_and_prefills",
    ),
)
def capture_any_count(original: Callable[[Any, Any], Any], builder: Any, common: Any) -> Any:
    """Say of shorter rows that the longest has 1 + K tokens of the largest K.

    That number is compared with this K here and where rows are told from chunks of prompts, and is
    in no metadata.
    """
    from vllm.v1.attention.backends.mamba2_attn import Mamba2AttentionMetadataBuilder
    from vllm.v1.attention.backends.short_conv_attn import ShortConvAttentionMetadataBuilder

    # Rows may be of any length where the numbers of accepted tokens are known.
    told_what_was_accepted = Mamba2AttentionMetadataBuilder, ShortConvAttentionMetadataBuilder
    most = 1 + builder.num_spec_tokens
    if isinstance(builder, told_what_was_accepted) and common.max_query_len < most:
        common = common.replace(max_query_len=most)
    return original(builder, common)

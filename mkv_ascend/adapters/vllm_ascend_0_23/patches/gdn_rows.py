# SPDX-License-Identifier: Apache-2.0
"""Rows of gated delta nets whose state is where a verification of drafts left it.

While ``K`` draft tokens are verified, a layer writes a state after each of the ``1 + K`` tokens,
into as many columns of the request's block table. The next step goes on from the column of the last
accepted token. vllm-ascend (0.23.0, ``ops/gdn_attn_builder.py``) handles this for rows that have
``K`` drafts again. Three other kinds of rows get a wrong state:

- a row with fewer drafts: its tokens' columns are looked up as if every row had ``1 + K`` tokens;
- a row without drafts: it goes on from column 0, whatever was accepted;
- a chunk of a prompt of ``1 + K`` tokens: it counts as a verification with its last token accepted,
  so it goes on from column ``K``, while the chunk before it left its state in column 0.

Here the first two become rows of ``1 + K`` tokens: the last token is repeated, and the results of
the repetitions are dropped (their states lie in columns that are not read). The third stays a chunk
of a prompt. Batches that a captured graph replays have none of the three. The first two are shorter
than a verify step, and the runner keeps batches with the third out of graphs of such steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from mkv_ascend.adapters.patching import patch

ROWS = "mkv_ascend_rows"
"""Attribute of metadata whose verify rows were padded."""

OF_THE_TARGET = "mkv_ascend_of_the_target"
"""Attribute of the target's builders; drafts build metadata for other rows."""


@dataclass(frozen=True)
class PaddedVerifyRows:
    """Verify rows of a batch, padded by repeating their last token.

    Attributes:
        starts: first token of each row, and the end, int32 ``[rows + 1]``.
        source: for each padded token, the original token that it is or repeats, int64.
        kept: for each original token, its place among the padded ones, int64.
    """

    starts: torch.Tensor
    source: torch.Tensor
    kept: torch.Tensor

    def to(self, device: torch.device) -> PaddedVerifyRows:
        """The same on ``device``."""
        parts = (self.starts, self.source, self.kept)
        return PaddedVerifyRows(*(part.to(device, non_blocking=True) for part in parts))


def padded_verify_rows(
    starts: torch.Tensor, verifying: torch.Tensor, width: int
) -> PaddedVerifyRows | None:
    """Pad the rows ``verifying`` (bool ``[rows]``) to ``width`` tokens; None if none is shorter.

    ``starts``: int ``[rows + 1]`` on the host. Rows without tokens stay empty.
    """
    lengths = starts.diff().to(torch.int64)
    short = verifying & (lengths > 0) & (lengths < width)
    if not bool(short.any()):
        return None
    longer = torch.where(short, width, lengths)
    new_starts = torch.zeros(len(lengths) + 1, dtype=torch.int64)
    torch.cumsum(longer, 0, out=new_starts[1:])
    row = torch.repeat_interleave(torch.arange(len(lengths)), longer)
    place = torch.arange(int(new_starts[-1])) - new_starts[row]
    source = starts[row].to(torch.int64) + torch.minimum(place, lengths[row] - 1)
    kept = (place < lengths[row]).nonzero().flatten()
    return PaddedVerifyRows(new_starts.to(starts.dtype), source, kept)


def verifying_rows(
    drafts: np.ndarray, accepted: np.ndarray, computed: np.ndarray, prompts: np.ndarray
) -> np.ndarray:
    """Number of drafts of each row that may go on from a column past 0; -1 for other rows.

    All are int ``[rows]``: ``drafts`` to verify (0 for none), tokens ``accepted`` by the last step
    with its own token, tokens ``computed``, and tokens of ``prompts``.
    """
    decoding = ~in_prompts(computed, prompts)
    found: np.ndarray = np.where(decoding & ((drafts > 0) | (accepted > 1)), drafts, -1)
    return found


def in_prompts(computed: np.ndarray, prompts: np.ndarray) -> np.ndarray:
    """Whether each row is a chunk of a prompt, from tokens computed and tokens of the prompt."""
    found: np.ndarray = computed < prompts
    return found


def mark_builders(builders: Iterable[Any]) -> None:
    """Let ``builders`` pad verify rows."""
    for builder in builders:
        setattr(builder, OF_THE_TARGET, True)


def install() -> None:
    """Replace vllm-ascend's methods, where the device has them. Idempotent."""
    from vllm_ascend.utils import is_310p

    if is_310p():
        return  # the 310P has a builder and layers of its own
    import vllm_ascend.patch.worker  # noqa: F401  (it gives the layers their core)

    build_of_padded_rows.apply()


@patch(
    name="rows of gated delta nets",
    target=(
        "vllm_ascend.ops.gdn_attn_builder:AscendGDNAttentionMetadataBuilder.build",
        "vllm_ascend.ops.gdn_attn_builder:AscendGDNAttentionMetadataBuilder."
        "_fold_spec_sized_prefill_chunks_into_spec",
        "vllm.model_executor.layers.mamba.gdn.qwen_gdn_linear_attn:"
        "QwenGatedDeltaNetAttention._forward_core",
    ),
    reads=("vllm_ascend.ops.gdn:AscendGatedDeltaNetAttention._forward_core",),
    writes=(OF_THE_TARGET, ROWS),
    why="After a verification of drafts a state stands in the column of the token that was "
    "accepted last. Rows with fewer drafts than K, or none, and chunks of prompts of K + 1 tokens, "
    "go on from another column: wrong tokens.",
    until="vllm-ascend looks columns up by row, and keeps chunks of prompts apart",
    test="tests/emulated/recurrent/test_gated_delta_nets.py",
)
def build_of_padded_rows(
    original: Callable[..., Any],
    builder: Any,
    common_prefix_len: int,
    common_attn_metadata: Any,
    num_accepted_tokens: torch.Tensor | None = None,
    num_decode_draft_tokens_cpu: torch.Tensor | None = None,
    fast_build: bool = False,
) -> Any:
    rest = (num_accepted_tokens, num_decode_draft_tokens_cpu, fast_build)
    common = common_attn_metadata
    rows = None
    if getattr(builder, OF_THE_TARGET, False) and num_decode_draft_tokens_cpu is not None:
        rows = padded_verify_rows(
            common.query_start_loc_cpu, num_decode_draft_tokens_cpu >= 0, builder.num_spec + 1
        )
    if rows is None:
        return original(builder, common_prefix_len, common, *rest)
    on_device = rows.to(common.query_start_loc.device)
    longer = common.replace(
        query_start_loc=on_device.starts,
        query_start_loc_cpu=rows.starts,
        num_actual_tokens=len(rows.source),
        max_query_len=int(rows.starts.diff().max()),
        # Of the original rows: lengths choose columns and must not change.
        _num_computed_tokens_cache=common.compute_num_computed_tokens(),
    )
    metadata = original(builder, common_prefix_len, longer, *rest)
    setattr(metadata, ROWS, on_device)
    return metadata


@build_of_padded_rows.also(
    target="vllm_ascend.ops.gdn_attn_builder:AscendGDNAttentionMetadataBuilder."
    "_fold_spec_sized_prefill_chunks_into_spec"
)
def _fold(
    original: Callable[..., Any],
    builder: Any,
    common_attn_metadata: Any,
    spec_sequence_masks_cpu: torch.Tensor,
    num_accepted_tokens: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """No chunk of a prompt counts as a verify step; the runner keeps them out of its graphs."""
    return spec_sequence_masks_cpu, num_accepted_tokens


@build_of_padded_rows.also(
    target="vllm.model_executor.layers.mamba.gdn.qwen_gdn_linear_attn:"
    "QwenGatedDeltaNetAttention._forward_core"
)
def _forward_core(
    original: Callable[..., None],
    layer: Any,
    mixed_qkv: torch.Tensor,
    b: torch.Tensor,
    a: torch.Tensor,
    core_attn_out: torch.Tensor,
) -> None:
    from vllm.forward_context import get_forward_context

    metadata = get_forward_context().attn_metadata
    rows: PaddedVerifyRows | None = None
    if isinstance(metadata, dict):
        rows = getattr(metadata[layer.prefix], ROWS, None)
    if rows is None:
        original(layer, mixed_qkv, b, a, core_attn_out)
        return
    longer = core_attn_out.new_zeros((len(rows.source), *core_attn_out.shape[1:]))
    inputs = (part.index_select(0, rows.source) for part in (mixed_qkv, b, a))
    original(layer, *inputs, longer)
    core_attn_out[: len(rows.kept)] = longer.index_select(0, rows.kept)

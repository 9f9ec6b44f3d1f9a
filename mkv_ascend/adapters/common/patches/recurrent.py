# SPDX-License-Identifier: Apache-2.0
"""Recurrent states: rows and builders that go on behind what was accepted, and groups of states."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from vllm.model_executor.layers.mamba.mamba_utils import is_conv_state_dim_first
from vllm.model_executor.layers.mamba.ops.ssu_dispatch import initialize_mamba_ssu_backend
from vllm.triton_utils import HAS_TRITON
from vllm.v1.attention.backends.mamba2_attn import Mamba2AttentionMetadataBuilder
from vllm.v1.attention.backends.registry import MambaAttentionBackendEnum
from vllm.v1.attention.backends.short_conv_attn import ShortConvAttentionMetadataBuilder
from vllm.v1.kv_cache_interface import KVCacheGroupSpec, KVCacheSpec, MambaSpec
from vllm.v1.worker.utils import AttentionGroup

from mkv_ascend.adapters.common.patches.prefix_hits import HITS
from mkv_ascend.adapters.patching import Patch, patch

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheConfig


# Rows of gated delta nets whose state is where a verification of drafts left it.
#
# While ``K`` draft tokens are verified, a layer writes a state after each of the ``1 + K``
# tokens, into as many columns of the request's block table. The next step goes on from the column
# of the last accepted token. vllm-ascend (``ops/gdn_attn_builder.py``) handles this for rows that
# have ``K`` drafts again. Two other kinds of rows get a wrong state:
#
# - a row with fewer drafts: its tokens' columns are looked up as if every row had ``1 + K`` tokens;
# - a row without drafts: it goes on from column 0, whatever was accepted.
#
# Here both become rows of ``1 + K`` tokens: the last token is repeated, and the results of the
# repetitions are dropped (their states lie in columns that are not read). A captured graph has
# such rows where K follows the load: its rows are as long as its own K asks, and are padded to
# the largest K inside the graph. So a request may go on behind more accepted tokens than its step
# verifies.

ROWS = "mkv_ascend_rows"
"""Attribute of metadata whose verify rows were padded."""

UNIFORM = "mkv_ascend_uniform_rows"
"""Attribute of a builder: padded rows of batches whose rows are alike, on the device, by the number
of rows and their length. A captured graph reads them in each replay, so they are kept."""

OF_THE_TARGET = "mkv_ascend_of_the_target"
"""Attribute of the target's builders, ``NamedRows``; drafts build metadata for other rows."""

NamedRows = Callable[[Any, torch.Tensor, int], torch.Tensor]
"""From the common metadata, the numbers of drafts, int ``[rows]``, and K: these numbers, where -1
is a row that does not go on from what a verification accepted."""


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


def as_named(common: Any, drafts: torch.Tensor, k: int) -> torch.Tensor:
    """``NamedRows`` where the runner has named rows without drafts already."""
    return drafts


def mark_builders(builders: Iterable[Any], named: NamedRows = as_named) -> None:
    """Let ``builders`` pad verify rows, which ``named`` tells."""
    for builder in builders:
        setattr(builder, OF_THE_TARGET, named)


def apply() -> None:
    """Replace vllm-ascend's methods. Idempotent."""
    import vllm_ascend.patch.worker  # noqa: F401  (it gives the layers their core)

    build_of_padded_rows.apply()


@patch(
    name="states go on from what was accepted",
    target=(
        "vllm_ascend.ops.gdn_attn_builder:AscendGDNAttentionMetadataBuilder.build",
        "vllm.model_executor.layers.mamba.gdn.qwen_gdn_linear_attn:"
        "QwenGatedDeltaNetAttention._forward_core",
        "vllm.v1.attention.backends.mamba_attn:BaseMambaAttentionMetadataBuilder.build",
        "vllm.v1.attention.backends.mamba2_attn:Mamba2AttentionMetadataBuilder.build",
        "vllm_ascend.worker.model_runner_v1:NPUModelRunner._update_states",
        "vllm_ascend.worker.model_runner_v1:NPUModelRunner._sync_num_accepted_tokens",
    ),
    reads=(
        "vllm_ascend.ops.gdn:AscendGatedDeltaNetAttention._forward_core",
        "vllm.v1.attention.backends.short_conv_attn:ShortConvAttentionMetadataBuilder",
        "vllm_ascend.worker.model_runner_v1:NPUModelRunner._update_states_after_model_execute",
        "vllm.v1.worker.gpu_model_runner:GPUModelRunner._update_states",
        "vllm.v1.worker.gpu_model_runner:GPUModelRunner._update_states_after_model_execute",
        "vllm.v1.worker.mamba_utils:postprocess_mamba_align_gpu",
        "vllm.v1.worker.mamba_utils:stage_postprocess_inputs_to_gpu",
    ),
)
def build_of_padded_rows(
    original: Callable[..., Any],
    builder: Any,
    common_prefix_len: int,
    common_attn_metadata: Any,
    num_accepted_tokens: torch.Tensor | None = None,
    num_decode_draft_tokens_cpu: torch.Tensor | None = None,
    **others: Any,
) -> Any:
    common, drafts = common_attn_metadata, num_decode_draft_tokens_cpu
    named: NamedRows | None = getattr(builder, OF_THE_TARGET, None)
    rows = None
    if named is not None and drafts is not None:
        drafts = named(common, drafts, builder.num_spec)
        rows = padded_verify_rows(common.query_start_loc_cpu, drafts >= 0, builder.num_spec + 1)
    rest = (num_accepted_tokens, drafts)
    if rows is None:
        return original(builder, common_prefix_len, common, *rest, **others)
    on_device = _on_device(builder, common, rows)
    requests = others.get("num_actual_reqs")
    longer = common.replace(
        query_start_loc=on_device.starts,
        query_start_loc_cpu=rows.starts,
        num_actual_tokens=int(rows.starts[-1 if requests is None else requests]),
        max_query_len=int(rows.starts.diff().max()),
        # Of the original rows: lengths choose columns and must not change.
        _num_computed_tokens_cache=common.compute_num_computed_tokens(),
    )
    metadata = original(builder, common_prefix_len, longer, *rest, **others)
    setattr(metadata, ROWS, on_device)
    return metadata


def _on_device(builder: Any, common: Any, rows: PaddedVerifyRows) -> PaddedVerifyRows:
    """``rows`` on the device; those of a batch whose rows are alike are copied there once."""
    device, lengths = common.query_start_loc.device, common.query_start_loc_cpu.diff()
    if bool((lengths != lengths[0]).any()):
        return rows.to(device)
    kept = builder.__dict__.setdefault(UNIFORM, {})
    shape = (len(lengths), int(lengths[0]))
    if shape not in kept:
        kept[shape] = rows.to(device)
    found: PaddedVerifyRows = kept[shape]
    return found


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
    rows = padded_rows_of(layer)
    if rows is None:
        original(layer, mixed_qkv, b, a, core_attn_out)
        return
    longer = core_attn_out.new_zeros((len(rows.source), *core_attn_out.shape[1:]))
    inputs = (part.index_select(0, rows.source) for part in (mixed_qkv, b, a))
    original(layer, *inputs, longer)
    core_attn_out[: len(rows.kept)] = longer.index_select(0, rows.kept)


def padded_rows_of(layer: Any) -> PaddedVerifyRows | None:
    """How rows of the running step are padded for this layer; None if none is."""
    from vllm.forward_context import get_forward_context

    metadata = get_forward_context().attn_metadata
    if not isinstance(metadata, dict):
        return None
    rows: PaddedVerifyRows | None = getattr(metadata[layer.prefix], ROWS, None)
    return rows


# Gives the number of accepted tokens to builders of states that must return to that token.
#
# A verification leaves several states: one after each token, or a window that holds them all. The
# next step starts from the state after the last accepted token. vllm-ascend (0.23.0,
# ``model_runner_v1.py``) gives the number only to the builder of the gated delta net, and only in
# steps that verify drafts. Without it vLLM's other builders treat a verification as part of a
# prompt, and rejected tokens stay in the state.

BUILDERS = (Mamba2AttentionMetadataBuilder, ShortConvAttentionMetadataBuilder)
"""vLLM's builders of states that can go back, except that of the gated delta net."""

RECORD = build_of_padded_rows.record
"""``build`` is replaced for the same purpose as there."""


@contextmanager
def with_accepted_tokens(
    groups: Sequence[Sequence[AttentionGroup]], accepted: torch.Tensor
) -> Iterator[None]:
    """Pass ``accepted`` to ``build`` of those builders while the block runs.

    Args:
        groups: attention groups per KV group.
        accepted: tokens accepted in each request's last step, int32 [requests].
    """
    builders: list[Any] = [
        builder
        for kv_group in groups
        for group in kv_group
        for builder in group.metadata_builders
        if isinstance(builder, BUILDERS)
    ]
    if builders:
        # Chunks of prompts accept no token, and start from the same state as one accepted token.
        accepted = accepted.clamp(min=1)
    for builder in builders:
        # An attribute of the instance hides the method of the class.
        builder.build = functools.partial(builder.build, num_accepted_tokens=accepted)
    try:
        yield
    finally:
        for builder in builders:
            del builder.build


# Separates the target's groups of recurrent states from the draft's.
#
# With prefix caching the target's states move from block to block, so that states at the ends of
# blocks stay. vLLM's code for that takes all groups of states (that of 0.23.0 asserts that they
# have one spec; that of 0.30.0 asks the target's model how states of each kind are copied). A
# draft's states never move (``prefix_hits.py``), so they are left out here.

groups_that_move = Patch(HITS)
OF_ANOTHER_STAGE = "a layer of another pipeline stage"


@groups_that_move.also(target="vllm.v1.worker.mamba_utils:get_mamba_groups")
def _groups_that_move(original: Any, kv_cache_config: KVCacheConfig) -> Any:
    """vLLM's answer, in the form of its release, as if other groups had no states.

    If no states move, it is the answer for all of them.
    """
    groups = kv_cache_config.kv_cache_groups
    moving = [group for group in groups if _moves(group.kv_cache_spec)]
    if not moving:
        return original(kv_cache_config)
    if not any(group.layer_names for group in moving):
        # vLLM 0.30.0 asks the layers, and ends a pipeline stage that has none. Shown one of another
        # stage, it prepares to copy the states of none.
        shown = dataclasses.replace(moving[0], layer_names=[OF_ANOTHER_STAGE])
        groups = [shown if group is moving[0] else group for group in groups]
    # Groups are told by their place, so that none can be taken out.
    seen = [group if _moves(group.kv_cache_spec) else _without_states(group) for group in groups]
    return original(dataclasses.replace(kv_cache_config, kv_cache_groups=seen))


def _without_states(group: KVCacheGroupSpec) -> KVCacheGroupSpec:
    return KVCacheGroupSpec([], KVCacheSpec(group.kv_cache_spec.block_size))


def _moves(spec: Any) -> bool:
    return isinstance(spec, MambaSpec) and spec.mamba_cache_mode != "none"


# What Mamba2 layers and short convolutions need of the device before the first step.

BY_UPDATE_OF_VLLM_ASCEND = (
    MambaAttentionBackendEnum.MAMBA2,
    MambaAttentionBackendEnum.SHORT_CONV,
)
"""Kinds whose windows vllm-ascend's ``causal_conv1d_update_npu`` moves on, where it has Triton."""


def prepare(vllm_config: VllmConfig, kv_cache_config: KVCacheConfig) -> None:
    """Choose the kernel of the state update, as vLLM's runner does and vllm-ascend's does not.

    Raises:
        ValueError: windows are kept the way that vllm-ascend's update cannot write.
    """
    specs = [group.kv_cache_spec for group in kv_cache_config.kv_cache_groups]
    kinds = {spec.mamba_type for spec in specs if isinstance(spec, MambaSpec)}
    if HAS_TRITON and is_conv_state_dim_first() and kinds & set(BY_UPDATE_OF_VLLM_ASCEND):
        raise ValueError(
            "VLLM_SSM_CONV_STATE_LAYOUT=DS asks for windows of convolutions with channels first. "
            "vllm-ascend's update of Mamba2 layers and short convolutions takes tokens first: it "
            "would write to a copy. Leave the variable out, or set it to SD"
        )
    initialize_mamba_ssu_backend(vllm_config.mamba_config, kv_cache_config)

# SPDX-License-Identifier: Apache-2.0
"""Recurrent states: updates of convolutions beside Triton, and padded rows of gated delta nets."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from vllm.model_executor.layers.mamba.mamba_utils import is_conv_state_dim_first
from vllm.triton_utils import HAS_TRITON
from vllm.v1.attention.backends.registry import MambaAttentionBackendEnum
from vllm.v1.kv_cache_interface import MambaSpec

from mkv_ascend.adapters.common.patches import recurrent
from mkv_ascend.adapters.patching import Patch, record

# Updates of convolutions (Mamba2, LFM2) that go back to the last accepted token, beside Triton.
#
# Where vLLM finds Triton, vllm-ascend 0.30.0rc2 looks for a Triton kernel of its own that it no
# longer has, and puts PyTorch code in the place of the update of vLLM. That code computes as many
# tokens as were accepted before, not those of this step, and reads numbers of the device in a
# loop. Gated delta nets of vllm-ascend have an operator for this, which serves here, too.

KINDS = (MambaAttentionBackendEnum.MAMBA2, MambaAttentionBackendEnum.SHORT_CONV)
WIDTHS = range(2, 5)
"""Widths of filters that the operator takes (CANN's documentation of CausalConv1d)."""
CHANNEL_UNIT = 16
"""It takes multiples of so many channels."""
OF_OTHER_BLOCKS = ("block_idx_last_scheduled_token", "initial_state_idx")
"""Arguments by which a state is read from one block and written to another."""


UPDATES = Patch(
    record(
        name="updates of convolutions",
        target=(
            "vllm.model_executor.layers.mamba.short_conv:causal_conv1d_update",
            "vllm.model_executor.layers.mamba.mamba_mixer2:causal_conv1d_update",
        ),
        reads=(
            "vllm.model_executor.layers.mamba.short_conv:ShortConv.forward_cuda",
            "vllm.model_executor.layers.mamba.mamba_mixer2:MambaMixer2.conv_ssm_forward",
            "vllm_ascend.ops.causal_conv1d:causal_conv1d_update",
            "vllm_ascend.ops.gdn:_normalize_causal_cache_indices",
        ),
    )
)


@UPDATES.also(target="vllm.model_executor.layers.mamba.short_conv:causal_conv1d_update")
@UPDATES.also(target="vllm.model_executor.layers.mamba.mamba_mixer2:causal_conv1d_update")
def _update(
    original: Callable[..., torch.Tensor],
    x: torch.Tensor,
    conv_state: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    activation: bool | str | None = None,
    conv_state_indices: torch.Tensor | None = None,
    num_accepted_tokens: torch.Tensor | None = None,
    query_start_loc: torch.Tensor | None = None,
    **others: Any,
) -> torch.Tensor:
    """``causal_conv1d_update`` of vLLM, by fla_npu's operator of that name.

    Args:
        x: [tokens, channels].
        conv_state: [blocks, channels, rows], a view of states with tokens first.
        weight: [channels, width].
        conv_state_indices: a state's block, [requests] or [requests, 1 + drafts]; the first counts.
        num_accepted_tokens: [requests]; None: the step goes on behind the only state.
        query_start_loc: [requests + 1]; None: one token per request.
    """
    if not HAS_TRITON or any(others.get(name) is not None for name in OF_OTHER_BLOCKS):
        return original(
            x,
            conv_state,
            weight,
            bias,
            activation,
            conv_state_indices=conv_state_indices,
            num_accepted_tokens=num_accepted_tokens,
            query_start_loc=query_start_loc,
            **others,
        )
    from fla_npu.ops.ascendc import causal_conv1d_update

    assert conv_state_indices is not None
    updated: torch.Tensor = causal_conv1d_update(
        x,
        conv_state.transpose(-1, -2),
        weight.transpose(0, 1).contiguous(),
        bias=bias,
        activation=activation,
        conv_state_indices=conv_state_indices.view(conv_state_indices.shape[0], -1)[:, 0],
        num_accepted_tokens=num_accepted_tokens,
        query_start_loc=query_start_loc,
        max_query_len=others.get("max_query_len", -1),
        null_block_id=0,
    )
    return updated


def refuse_other_states(specs: Mapping[str, Any], dtype: torch.dtype) -> None:
    """Refuse states that the operator cannot update.

    Windows with channels first are refused elsewhere, for every update of vllm-ascend.

    Args:
        specs: by layer.
        dtype: of the model, whose inputs go into the states.

    Raises:
        ValueError: a filter's width, its number of channels on a rank, or the dtype of its states
            is not served.
    """
    if not HAS_TRITON or is_conv_state_dim_first():
        return
    for name, spec in specs.items():
        if not isinstance(spec, MambaSpec) or spec.mamba_type not in KINDS:
            continue
        rows, channels = spec.shapes[0]
        width = rows + 1 - spec.num_speculative_blocks
        if width not in WIDTHS or channels % CHANNEL_UNIT:
            raise ValueError(
                f"The convolution of {name} has {channels} channels on a rank and a filter of "
                f"{width} tokens. The operator that updates it takes multiples of {CHANNEL_UNIT} "
                f"channels and {WIDTHS[0]} to {WIDTHS[-1]} tokens. Choose another model, or "
                "another --tensor-parallel-size"
            )
        if spec.dtypes[0] != dtype:
            raise ValueError(
                f"--mamba-cache-dtype asks for windows in {spec.dtypes[0]}, and {name} computes in "
                f"{dtype}. The operator that updates them takes one dtype for both. Leave the "
                "option out; --mamba-ssm-cache-dtype is that of the states beside them"
            )


# Where rows of gated delta nets are padded to the width of a verification.
#
# Kimi delta attention has their metadata, and a class of its own in vllm-ascend 0.30.0rc2.


@recurrent.build_of_padded_rows.on_one_host(
    target="vllm_ascend.ops.kimi_kda:AscendKimiK3DeltaAttention._forward"
)
def _of_kimi_delta_attention(
    original: Callable[..., None],
    layer: Any,
    mixed_qkv: torch.Tensor,
    g1: torch.Tensor,
    g2: torch.Tensor,
    beta: torch.Tensor,
    core_attn_out: torch.Tensor,
    **others: Any,
) -> None:
    """``g1``, ``beta`` and the output begin with an axis of one sequence; tokens come second."""
    rows = recurrent.padded_rows_of(layer)
    if rows is None:
        original(layer, mixed_qkv, g1, g2, beta, core_attn_out, **others)
        return
    longer = core_attn_out.new_zeros((1, len(rows.source), *core_attn_out.shape[2:]))
    inputs = (
        part.index_select(axis, rows.source)
        for part, axis in ((mixed_qkv, 0), (g1, 1), (g2, 0), (beta, 1))
    )
    original(layer, *inputs, longer, **others)
    core_attn_out[:, : len(rows.kept)] = longer.index_select(1, rows.kept)


def install() -> None:
    """Apply the patches, those of gated delta nets where the device has them. Idempotent."""
    from vllm_ascend.device.hardware_profile import (
        HardwareCapability,
        get_current_hardware_profile,
    )

    UPDATES.apply()
    recurrent.groups_that_move.apply()
    if get_current_hardware_profile().supports(HardwareCapability.GDN_COMPATIBILITY):
        return  # the 310P has a builder and layers of its own
    recurrent.apply()

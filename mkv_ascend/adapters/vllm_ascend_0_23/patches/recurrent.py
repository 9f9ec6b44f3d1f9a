# SPDX-License-Identifier: Apache-2.0
"""Recurrent states: their blocks, windows of convolutions, and rows that verify drafts.

The front process takes the blocks alone, so vLLM's layers are imported where they are asked.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import torch

from mkv_ascend.adapters.common.batch_rows import in_prompts
from mkv_ascend.adapters.logging import get_logger
from mkv_ascend.adapters.patching import patch

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.attention.backends.short_conv_attn import ShortConvAttentionMetadata


# Block sizes of models with recurrent states that vllm-ascend cannot align.
#
# vllm-ascend (0.23.0, ``patch/platform/patch_mamba_config.py``) makes attention blocks so large
# that their keys are as many bytes as a state, and asserts that they can be. Planned caches share
# planes where sizes are equal and need no equal sizes, so that blocks may have any size the
# kernels take.

logger = get_logger(__name__)

CANNOT_ALIGN = "Cannot align ssm_page_size and attn_page_size."
KERNEL_BLOCK = 128
"""Tokens; what vllm-ascend's attention takes."""


@patch(
    name="blocks beside recurrent states",
    target="vllm.model_executor.models.config:"
    "HybridAttentionMambaModelConfig.verify_and_update_config",
    reads=("vllm_ascend.patch.platform.patch_mamba_config:verify_and_update_config",),
)
def blocks_without_alignment(original: Any, cls: type[Any], vllm_config: VllmConfig) -> None:
    """vllm-ascend's method; only its assertion on sizes is passed over, only that mode changed."""
    _keep_states_of_aligned_blocks(vllm_config.cache_config)
    try:
        original(cls, vllm_config)
    except AssertionError as error:
        if str(error) != CANNOT_ALIGN:
            raise
        if vllm_config.kv_transfer_config is not None:
            raise ValueError(
                "KV transfer was asked for. It takes states in vllm-ascend's arrangement, "
                "where attention's keys of a block are as many bytes as a state, and those of "
                f"{vllm_config.model_config.model} cannot be. Leave out --kv-transfer-config, "
                "or choose a model without such states"
            ) from error
        _without_alignment(vllm_config)


def _keep_states_of_aligned_blocks(cache: Any) -> None:
    """Mode "align" for every model: vllm-ascend's blocks of states serve no other one."""
    if not cache.enable_prefix_caching or cache.mamba_cache_mode == "align":
        return
    if cache.mamba_cache_mode == "all":
        logger.warning(
            "mamba_cache_mode is 'align', not 'all': on Ascend states are kept at the ends of "
            "scheduled chunks, not at the end of every block"
        )
    cache.mamba_cache_mode = "align"


def _without_alignment(vllm_config: VllmConfig) -> None:
    """Blocks as without states, and no padding of pages. The original has done the rest."""
    cache = vllm_config.cache_config
    if cache.block_size is None or cache.block_size % KERNEL_BLOCK:
        cache.block_size = KERNEL_BLOCK
    cache.mamba_page_size_padded = None
    logger.info(
        "States and attention's keys cannot be made equally large, which planned KV caches do not "
        "need: blocks have %d tokens",
        cache.block_size,
    )
    by_prefix = cache.enable_prefix_caching and cache.mamba_cache_mode == "align"
    cache.mamba_block_size = (
        cache.block_size if by_prefix else vllm_config.model_config.max_model_len
    )


# Steps that never reach the end of a block at which a recurrent state is kept.
#
# vLLM 0.30.0 lets a chunk end inside such a block; vLLM 0.23.0 does not.


def refuse_short_steps(config: VllmConfig) -> None:
    """Check the schedule where states are kept at the ends of blocks.

    Raises:
        ValueError: a step, or a chunk of a prompt, takes fewer tokens than such a block.
    """
    if config.cache_config.mamba_cache_mode != "align":
        return
    block, scheduler = config.cache_config.block_size, config.scheduler_config
    kept = f"states are kept at the end of each block of {block} tokens"
    most = scheduler.max_num_scheduled_tokens or scheduler.max_num_batched_tokens
    if most < block:
        raise ValueError(
            f"{kept}, but a step takes at most {most}: a long prompt would wait for ever. Of "
            f"max_num_batched_tokens ({scheduler.max_num_batched_tokens}) drafts keep the rest; "
            f"raise it by {block - most} or more, or switch prefix caching off"
        )
    chunk = scheduler.long_prefill_token_threshold
    if 0 < chunk < block:
        # vLLM asserts the same without a word.
        raise ValueError(
            f"{kept}, but --long-prefill-token-threshold cuts prompts into chunks of {chunk}: none "
            f"would reach that end. Raise it to {block} or more, leave it out, or switch prefix "
            "caching off"
        )


# Short convolutions (LFM2) whose windows can return to the last accepted token.
#
# vLLM 0.23.0 keeps only as many inputs as the filter needs. A verification of drafts leaves
# rejected inputs among them. Here the window also holds all tokens of a verification, as Mamba2's
# does, and the update knows how many of them were accepted.

DRAFTED = "mkv_ascend_drafted"
"""Attribute of a layer: how many draft tokens a step verifies."""

_verified: ContextVar[ShortConvAttentionMetadata | None] = ContextVar("verified", default=None)


@patch(
    name="windows of short convolutions",
    target=(
        "vllm.model_executor.layers.mamba.short_conv:ShortConv.__init__",
        "vllm.model_executor.layers.mamba.short_conv:ShortConv.get_state_shape",
        "vllm.model_executor.layers.mamba.short_conv:ShortConv.forward_cuda",
        "vllm.model_executor.layers.mamba.short_conv:causal_conv1d_update",
    ),
    reads=("vllm.v1.attention.backends.short_conv_attn:ShortConvAttentionMetadataBuilder",),
)
def remember_drafted(original: Any, layer: Any, *args: Any, **kwargs: Any) -> None:
    from vllm.config import get_current_vllm_config

    original(layer, *args, **kwargs)
    setattr(layer, DRAFTED, get_current_vllm_config().num_speculative_tokens)


@remember_drafted.also(
    target="vllm.model_executor.layers.mamba.short_conv:ShortConv.get_state_shape"
)
def _get_state_shape(original: Any, layer: Any) -> tuple[tuple[int, int]]:
    """The shape of the window with the draft tokens of a step behind it."""
    from vllm.model_executor.layers.mamba.mamba_utils import is_conv_state_dim_first

    ((first, second),) = original(layer)
    drafted = getattr(layer, DRAFTED)
    if is_conv_state_dim_first():
        return ((first, second + drafted),)
    return ((first + drafted, second),)


@remember_drafted.also(target="vllm.model_executor.layers.mamba.short_conv:ShortConv.forward_cuda")
def _forward(original: Any, layer: Any, hidden_states: torch.Tensor, output: torch.Tensor) -> Any:
    from vllm.forward_context import get_forward_context

    metadata = get_forward_context().attn_metadata
    layer_metadata = metadata.get(layer.prefix) if isinstance(metadata, dict) else None
    before = _verified.set(layer_metadata if getattr(layer, DRAFTED) else None)
    try:
        return original(layer, hidden_states, output)
    finally:
        _verified.reset(before)


@remember_drafted.also(target="vllm.model_executor.layers.mamba.short_conv:causal_conv1d_update")
def _update(original: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
    """``causal_conv1d_update`` with the accepted tokens, if the step knows them."""
    metadata = _verified.get()
    if metadata is not None and metadata.num_accepted_tokens is not None:
        assert metadata.state_indices_tensor_d is not None
        kwargs.update(
            num_accepted_tokens=metadata.num_accepted_tokens,
            query_start_loc=metadata.query_start_loc_d,
            max_query_len=metadata.state_indices_tensor_d.shape[1],
        )
    result: torch.Tensor = original(*args, **kwargs)
    return result


# How many tokens a row that decodes may have, beside drafts that propose in parallel.


@patch(
    name="rows that decode beside Mamba2 and short convolutions",
    target="vllm.v1.attention.backends.mamba_attn:BaseMambaAttentionMetadataBuilder.__init__",
    reads=(
        "vllm.v1.attention.backend:AttentionMetadataBuilder._init_reorder_batch_threshold",
        "vllm_ascend.worker.model_runner_v1:NPUModelRunner.calculate_reorder_batch_threshold",
    ),
)
def rows_that_verify(
    original: Any, builder: Any, spec: Any, layer_names: list[str], config: Any, device: Any
) -> None:
    """As vLLM's, then with 1 + K tokens at most."""
    original(builder, spec, layer_names, config, device)
    speculative = config.speculative_config
    if speculative is not None and speculative.parallel_drafting:
        verified = 1 + speculative.num_speculative_tokens
        builder.reorder_batch_threshold = min(builder.reorder_batch_threshold, verified)


# Chunks of prompts, kept out of graphs of verify steps where models have recurrent layers.


@patch(
    name="chunks of prompts are no verify steps",
    target="vllm_ascend.worker.model_runner_v1:NPUModelRunner."
    "_determine_batch_execution_and_padding",
)
def no_verify_steps(
    original: Any,
    runner: Any,
    num_tokens: int,
    num_reqs: int,
    *args: Any,
    force_uniform_decode: bool | None = None,
    **kwargs: Any,
) -> Any:
    """As vllm-ascend's, but no batch with a chunk of a prompt is one of verify steps."""
    batch, model = runner.input_batch, runner.model_config
    if force_uniform_decode is None and (model.is_hybrid or model.is_attention_free):
        computed = batch.num_computed_tokens_cpu[:num_reqs]
        if in_prompts(computed, batch.num_prompt_tokens[:num_reqs]).any():
            force_uniform_decode = False
    return original(
        runner, num_tokens, num_reqs, *args, force_uniform_decode=force_uniform_decode, **kwargs
    )


# Chunks of prompts that vllm-ascend 0.23.0 takes for verifications of gated delta nets.
#
# A chunk of ``1 + K`` tokens counts as a verification with its last token accepted. So it goes on
# from column ``K`` of the request's block table, while the chunk before it left its state in
# column 0. Here it stays a chunk of a prompt. Other rows: ``common/patches/recurrent.py``.


def install() -> None:
    """Apply the patches of a worker, those of gated delta nets where it has them. Idempotent."""
    from vllm_ascend.utils import is_310p

    from mkv_ascend.adapters.common.patches import recurrent

    for one in (
        recurrent.groups_that_move,
        no_verify_steps,
        blocks_without_alignment,
        remember_drafted,
        rows_that_verify,
    ):
        one.apply()
    if is_310p():
        return  # the 310P has a builder and layers of its own
    recurrent.apply()
    no_chunk_verifies.apply()


@patch(
    name="chunks of prompts of gated delta nets",
    target="vllm_ascend.ops.gdn_attn_builder:AscendGDNAttentionMetadataBuilder."
    "_fold_spec_sized_prefill_chunks_into_spec",
)
def no_chunk_verifies(
    original: Callable[..., Any],
    builder: Any,
    common_attn_metadata: Any,
    spec_sequence_masks_cpu: torch.Tensor,
    num_accepted_tokens: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """No chunk of a prompt counts as a verify step; the runner keeps them out of its graphs."""
    return spec_sequence_masks_cpu, num_accepted_tokens

# SPDX-License-Identifier: Apache-2.0
"""Block sizes of models with recurrent states that vllm-ascend cannot align.

vllm-ascend (0.23.0, ``patch/platform/patch_mamba_config.py``) makes attention blocks so large that
their keys are as many bytes as a state, and asserts that they can be. Planned caches share planes
where sizes are equal and need no equal sizes, so that blocks may have any size the kernels take.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mkv_ascend.adapters.logging import get_logger
from mkv_ascend.adapters.patching import patch

if TYPE_CHECKING:
    from vllm.config import VllmConfig

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

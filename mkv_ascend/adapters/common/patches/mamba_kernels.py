# SPDX-License-Identifier: Apache-2.0
"""What Mamba2 layers and short convolutions need of the device before the first step."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vllm.model_executor.layers.mamba.mamba_utils import is_conv_state_dim_first
from vllm.model_executor.layers.mamba.ops.ssu_dispatch import initialize_mamba_ssu_backend
from vllm.triton_utils import HAS_TRITON
from vllm.v1.attention.backends.registry import MambaAttentionBackendEnum
from vllm.v1.kv_cache_interface import MambaSpec

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheConfig

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

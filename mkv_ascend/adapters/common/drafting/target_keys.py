# SPDX-License-Identifier: Apache-2.0
"""Layers of a draft that have queries alone and read keys and values of the target (Gemma 4)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from vllm.config import get_layers_from_vllm_config
from vllm.model_executor.layers.attention import Attention
from vllm.v1.kv_cache_interface import KVCacheSpec

from mkv_ascend.adapters.common.attention.derived import underived


def read_keys_of_the_target(proposer: Any, layers: Mapping[str, Any]) -> None:
    """Let each of the draft's layers read the last layer of the target that keeps such keys.

    Raises:
        ValueError: the target has no layer with keys of that shape, or keeps them for another
            backend.
    """
    config = proposer.vllm_config
    every = get_layers_from_vllm_config(config, Attention)
    owners = {
        _kept(layer.get_kv_cache_spec(config)): name
        for name, layer in every.items()
        if name not in layers and layer.kv_sharing_target_layer_name is None
    }
    for name, layer in layers.items():
        wanted = _kept(layer.get_kv_cache_spec(config))
        if wanted not in owners:
            raise ValueError(
                f"layer {name} of the draft reads keys of the target, of the form {wanted}, and "
                f"the target keeps {', '.join(map(str, owners)) or 'none'}. Choose the head that "
                "belongs to this target."
            )
        _refuse_another_backend(name, layer, owners[wanted], every[owners[wanted]])
        layer.kv_sharing_target_layer_name = owners[wanted]
    proposer.draft_host.run_without_keys(proposer.model, layers.values())


def _refuse_another_backend(name: str, layer: Any, owner_name: str, owner: Any) -> None:
    # The host's class arranges a cache. What is derived from it reads the same: the spec tells its
    # dtype, and layers of a draft alone have windows that may see ahead.
    ours, theirs = underived(type(layer.impl)), underived(type(owner.impl))
    if ours is not theirs:
        raise ValueError(
            f"layer {name} of the draft is on {ours.__name__}, and reads the cache of "
            f"{owner_name}, which is on {theirs.__name__}. Choose one backend for both, or leave "
            "the draft's out."
        )


def _kept(spec: KVCacheSpec) -> KVCacheSpec:
    """What a layer keeps for each token, and how long; not in how large blocks."""
    return replace(spec, block_size=1)

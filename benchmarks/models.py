# SPDX-License-Identifier: Apache-2.0
"""Layers and their caches from a config.json, for the models of ``benchmarks.kv_layout``.

Only the numbers that size a cache are read; no weights, no model classes. bfloat16, one rank.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mkv_ascend.layout.kind import Kind, Role
from mkv_ascend.layout.requirements import (
    LayerRequirements,
    Retention,
    RetentionKind,
    block_size_choices,
)

CONFIGS = Path(__file__).resolve().parents[1] / "tests" / "data" / "configs"
ELEMENT_BYTES = 2
"""Bytes of one bfloat16 element."""
KERNEL_BLOCK_SIZE = 128
"""The block size that vllm-ascend's attention backends take (get_supported_kernel_block_sizes)."""


@dataclass(frozen=True)
class ModelLayer:
    """What one layer keeps. ``rows``: elements per token of each component, in order;
    ``states``: shape of each state; ``window``: tokens, 0 for all; ``heads`` and ``dim`` as a spec
    of vLLM takes them (MLA: 1 and latent + rope)."""

    name: str
    role: Role
    kind: Kind
    block_size: int
    heads: int = 0
    dim: int = 0
    rows: tuple[int, ...] = ()
    window: int = 0
    states: tuple[tuple[int, ...], ...] = ()
    padded_page_bytes: int = 0

    @property
    def state_bytes(self) -> tuple[int, ...]:
        return tuple(math.prod(shape) * ELEMENT_BYTES for shape in self.states)

    @property
    def page_bytes(self) -> int:
        return ELEMENT_BYTES * self.block_size * sum(self.rows) + sum(self.state_bytes)


def read_config(name: str) -> dict[str, Any]:
    """The config of ``name``; of a multi-modal model, its text part."""
    config: dict[str, Any] = json.loads((CONFIGS / name / "config.json").read_text())
    text: dict[str, Any] = config.get("text_config", config)
    return text


def model_layers(name: str, role: Role, block_size: int = KERNEL_BLOCK_SIZE) -> list[ModelLayer]:
    """The layers of model ``name`` that keep a cache, in the order of execution."""
    config = read_config(name)
    prefix = "draft_model." if role is Role.DRAFT else ""
    return [
        _layer(config, kind, f"{prefix}model.layers.{index}", role, block_size)
        for index, kind in enumerate(_layer_kinds(config))
    ]


def _layer_kinds(config: dict[str, Any]) -> list[str]:
    count = config["num_hidden_layers"]
    if "layer_types" in config:
        return list(config["layer_types"])
    if interval := config.get("full_attention_interval"):
        return [
            "linear_attention" if (index + 1) % interval else "full_attention"
            for index in range(count)
        ]
    return ["mla" if "kv_lora_rank" in config else "full_attention"] * count


def _layer(config: dict[str, Any], kind: str, name: str, role: Role, block_size: int) -> ModelLayer:
    if kind == "linear_attention":
        return ModelLayer(name, role, Kind.MAMBA, block_size, states=delta_net_states(config))
    if kind == "conv":
        # vLLM, MambaStateShapeCalculator.short_conv_state_shape.
        shape = (config["conv_L_cache"] - 1, config["hidden_size"])
        return ModelLayer(name, role, Kind.MAMBA, block_size, states=(shape,))
    if kind == "mla":
        latent, rope = config["kv_lora_rank"], config["qk_rope_head_dim"]
        return ModelLayer(name, role, Kind.MLA, block_size, 1, latent + rope, (latent, rope))
    heads = config["num_key_value_heads"]
    dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    window = config["sliding_window"] if kind == "sliding_attention" else 0
    return ModelLayer(
        name,
        role,
        Kind.SLIDING_WINDOW if window else Kind.FULL_ATTENTION,
        block_size,
        heads,
        dim,
        (heads * dim, heads * dim),
        window,
    )


def delta_net_states(config: dict[str, Any]) -> tuple[tuple[int, ...], ...]:
    """Shapes of the conv and ssm state of a gated delta net, without speculative tokens.

    vLLM, ``MambaStateShapeCalculator.gated_delta_net_state_shape``.
    """
    key = config["linear_num_key_heads"] * config["linear_key_head_dim"]
    value_heads, value_dim = config["linear_num_value_heads"], config["linear_value_head_dim"]
    conv = (config["linear_conv_kernel_dim"] - 1, 2 * key + value_heads * value_dim)
    return conv, (value_heads, value_dim, config["linear_key_head_dim"])


@dataclass(frozen=True)
class Pair:
    """A target with a draft, both as layers that run on one rank."""

    layers: tuple[ModelLayer, ...]

    def needs(self, takes_strides: bool = False) -> list[LayerRequirements]:
        """The pair as grouping takes it."""
        return [_need(layer, self._largest, takes_strides) for layer in self.layers]

    def needs_of_pages(self) -> list[LayerRequirements]:
        """The pair as grouping takes it on 0.30.0rc2, where vLLM pads the pages of a hybrid model.

        Its layers take any stride there, unless some are MLA (``let_strides_be_taken`` of the
        adapter): plans pack their pages without that padding. Others are as on 0.23.0.
        """
        has_states = any(layer.states for layer in self.layers)
        if not has_states or any(layer.kind is Kind.MLA for layer in self.layers):
            return self.needs()
        return [replace(need, is_packed=True) for need in self.needs()]

    @property
    def _largest(self) -> int:
        own = [layer.block_size for layer in self.layers]
        return math.lcm(*own)


def _need(layer: ModelLayer, largest: int, takes_strides: bool) -> LayerRequirements:
    if layer.states:
        sizes: tuple[int, ...] = (layer.block_size,)
        retention = Retention(RetentionKind.STATE, 1)
    else:
        sizes = block_size_choices(layer.block_size, KERNEL_BLOCK_SIZE, largest)
        retention = (
            Retention(RetentionKind.WINDOW, layer.window)
            if layer.window
            else Retention(RetentionKind.ALL)
        )
    return LayerRequirements(
        name=layer.name,
        role=layer.role,
        kind=layer.kind,
        retention=retention,
        block_sizes=sizes,
        row_bytes=tuple(row * ELEMENT_BYTES for row in layer.rows),
        state_bytes=layer.state_bytes,
        takes_strides=takes_strides,
        kernel_block=KERNEL_BLOCK_SIZE if layer.rows else None,
        # vLLM knows a group of states by its one spec.
        table=str(layer.states) if layer.states else "",
    )


def load_pair(target: str, draft: str) -> Pair:
    """Target and draft by name of their configs, with vllm-ascend's block and page sizes.

    Where the target has ssm states, vllm-ascend makes the attention block so large that its keys
    are as many bytes as one ssm state, and pads every smaller page to that block's bytes plus the
    conv state (``patch/platform/patch_mamba_config.py``). The short convolutions of LFM2 fit no
    such block (the same function refuses them); an LFM2 target pads states to its attention page.
    """
    target_layers = model_layers(target, Role.TARGET)
    mamba = next((layer for layer in target_layers if layer.states), None)
    attention = next(layer for layer in target_layers if layer.rows)
    if mamba is None:
        return Pair((*target_layers, *model_layers(draft, Role.DRAFT)))
    block_size, page_bytes = KERNEL_BLOCK_SIZE, attention.page_bytes
    if len(mamba.states) > 1:
        ssm_bytes, conv_bytes = max(mamba.state_bytes), min(mamba.state_bytes)
        key_bytes = attention.rows[0] * ELEMENT_BYTES
        block_size *= -(-ssm_bytes // (KERNEL_BLOCK_SIZE * key_bytes))
        page_bytes = 2 * block_size * key_bytes + conv_bytes
    layers = model_layers(target, Role.TARGET, block_size)
    layers += model_layers(draft, Role.DRAFT, block_size)
    return Pair(tuple(_padded(layer, page_bytes) for layer in layers))


def load_pair_of_pages(target: str, draft: str) -> Pair:
    """Target and draft as on 0.30.0rc2, where attention and states have pages of one size.

    Where the target has states, vLLM makes the attention block the least multiple of the kernel
    block whose page holds one layer's states (``Platform._align_hybrid_block_size``), and pads the
    states; vllm-ascend pads smaller pages of attention too (``NPUModelRunner.get_kv_cache_spec``).
    """
    target_layers = model_layers(target, Role.TARGET)
    mamba = next((layer for layer in target_layers if layer.states), None)
    if mamba is None:
        return Pair((*target_layers, *model_layers(draft, Role.DRAFT)))
    attention = next(layer for layer in target_layers if layer.rows)
    blocks = -(-mamba.page_bytes // attention.page_bytes)
    layers = model_layers(target, Role.TARGET, blocks * KERNEL_BLOCK_SIZE)
    layers += model_layers(draft, Role.DRAFT, blocks * KERNEL_BLOCK_SIZE)
    return Pair(tuple(_padded(layer, blocks * attention.page_bytes) for layer in layers))


def _padded(layer: ModelLayer, page_bytes: int) -> ModelLayer:
    return replace(layer, padded_page_bytes=page_bytes) if layer.page_bytes < page_bytes else layer

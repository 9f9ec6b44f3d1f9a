# SPDX-License-Identifier: Apache-2.0
"""Layers of multi-token prediction of further families, as vLLM loads their checkpoints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch
from torch import nn
from transformers import LlamaConfig
from transformers.models.exaone_moe import modeling_exaone_moe
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRotaryEmbedding

from tests.support.tiny_models import deepseek_v32
from tests.support.tiny_models.heads import Head, MtpHead


class SparseMtpHead(MtpHead):
    """DeepSeek-V3.2's, whose attention chooses its keys."""

    def make_layer(self) -> nn.Module:
        """With experts, as all layers behind the first few have."""
        layer: Any = self.layer_like(self.config.mlp_layer_types.index("sparse"))
        if isinstance(self.target, deepseek_v32.DeepseekV32ForCausalLM):
            deepseek_v32.pairs_to_halves_behind(layer.self_attn)
        return cast("nn.Module", layer)


class Glm4MoeMtpHead(MtpHead):
    """GLM-4's with experts (``glm4_moe_mtp``).

    What it hands on is before its last norm; vllm-ascend changes that for DeepSeek alone.
    """

    hands_on_normed = False


class Glm4MoeLiteMtpHead(Glm4MoeMtpHead):
    """GLM-4.7-Flash's, with attention over a latent (``glm4_moe_lite_mtp``)."""

    def make_layer(self) -> nn.Module:
        """With experts, as all layers behind the first few have."""
        return self.layer_like(self.config.mlp_layer_types.index("sparse"))


class QwenMtpHead(MtpHead):
    """That of Qwen3-Next and Qwen3.5: a layer with attention, and no recurrent state."""

    PREFIX, LAYER = "mtp.", "layers.0."
    NAMES: Mapping[str, str] = {
        "token_norm": "pre_fc_norm_embedding",
        "known_norm": "pre_fc_norm_hidden",
        "mix": "fc",
        "norm": "norm",
    }
    copies_matrices = hides_first_token = False

    def make_layer(self) -> nn.Module:
        """Of the target's layers with attention."""
        return self.layer_like(self.config.layer_types.index("full_attention"))


class WindowedLayer(modeling_exaone_moe.ExaoneMoeDecoderLayer):
    """A layer that takes a causal mask, and hides what lies before its window."""

    def forward(
        self, hidden_states: torch.Tensor, attention_mask: torch.Tensor, **given: Any
    ) -> torch.Tensor:
        length = hidden_states.shape[1]
        window = self.self_attn.sliding_window
        before = torch.ones(length, length, dtype=torch.bool).tril(-window)
        mask = attention_mask.masked_fill(before, float("-inf"))
        return super().forward(hidden_states=hidden_states, attention_mask=mask, **given)


class ExaoneMoeMtpHead(QwenMtpHead):
    """K-EXAONE's: the target's first kind, with a window and no experts (``exaone_moe_mtp``)."""

    def make_layer(self) -> nn.Module:
        assert self.config.layer_types[0] == "sliding_attention"
        assert self.config.mlp_layer_types[0] == "dense"
        return WindowedLayer(self.config, 0)


SIZES_OF_ERNIE = (
    "hidden_size",
    "head_dim",
    "intermediate_size",
    "max_position_embeddings",
    "num_attention_heads",
    "num_key_value_heads",
    "rms_norm_eps",
    "rope_parameters",
)
"""What the layer takes from the target's configuration."""


class ErnieMtpHead(MtpHead):
    """That of ERNIE 4.5 with experts: a layer of Llama, without a norm behind it (``ernie_mtp``).

    It rotates as Llama does; the target rotates neighbouring elements.
    """

    PREFIX, LAYER = "model.", "mtp_block.0."
    NAMES: Mapping[str, str] = {
        "token_norm": "mtp_emb_norm.0",
        "known_norm": "mtp_hidden_norm.0",
        "mix": "mtp_linear_proj.0",
    }
    copies_matrices = False

    def __init__(self, target: Any) -> None:
        super().__init__(target)
        self.norm = nn.Identity()

    @property
    def config(self) -> Any:
        """The layer's own."""
        sizes = {name: getattr(self.target.config, name) for name in SIZES_OF_ERNIE}
        return LlamaConfig(**sizes, attn_implementation="eager")

    def make_layer(self) -> nn.Module:
        return LlamaDecoderLayer(self.config, 0)

    def make_rope(self) -> Any:
        return LlamaRotaryEmbedding(self.config)


class MimoMtpHead(MtpHead):
    """MiMo's, which takes the target's states before its last norm (``mimo_mtp``).

    MiMo itself is Qwen2 in all that decides tokens, and transformers has no class of its name;
    published checkpoints bring code of their own.
    """

    PREFIX = "model.mtp_layers.0."
    NAMES: Mapping[str, str] = {
        "token_norm": "token_layernorm",
        "known_norm": "hidden_layernorm",
        "mix": "input_proj",
        "norm": "final_layernorm",
    }
    copies_matrices = False
    takes_known_first = True

    def make_layer(self) -> nn.Module:
        return self.layer_like(0)

    def known(self, hidden_states: Sequence[torch.Tensor]) -> torch.Tensor:
        """The last layer's output but for its length, which ``known_norm`` takes away."""
        directions: torch.Tensor = hidden_states[-1] / self.target.model.norm.weight
        return directions


FURTHER_HEADS: dict[str, type[Head]] = {
    "deepseek_v32": SparseMtpHead,
    "glm4_moe": Glm4MoeMtpHead,
    "glm4_moe_lite": Glm4MoeLiteMtpHead,
    "qwen3_next": QwenMtpHead,
    "qwen3_5": QwenMtpHead,
    "qwen3_5_moe": QwenMtpHead,
    "exaone_moe": ExaoneMoeMtpHead,
    "ernie4_5_moe": ErnieMtpHead,
    "qwen2": MimoMtpHead,
}
"""Model type of a checkpoint -> the head."""

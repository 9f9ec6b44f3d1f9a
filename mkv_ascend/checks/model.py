# SPDX-License-Identifier: Apache-2.0
"""What the config.json of a model says that decides whether it can be served."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mkv_ascend.checks.config_file import read_config_file, text_part
from mkv_ascend.checks.weight_formats import WeightFormats, read_weight_formats
from mkv_ascend.layout.kind import Kind, Role

__all__ = ["GATED_DELTA_RULE", "RECURRENT_TYPES", "ROLLED_BACK", "ModelFacts", "read_model_facts"]

GATED_DELTA_RULE = "gated delta rule"
DELTA_ATTENTION = "Kimi delta attention (KDA)"
RECURRENT_TYPES = {
    "qwen3_next": GATED_DELTA_RULE,
    "qwen3_5_text": GATED_DELTA_RULE,
    "qwen3_5_moe_text": GATED_DELTA_RULE,
    "qwen3_5": GATED_DELTA_RULE,
    "qwen3_5_moe": GATED_DELTA_RULE,
    "granitemoehybrid": "Mamba2",
    "bamba": "Mamba2",
    "falcon_h1": "Mamba2",
    "nemotron_h": "Mamba2",
    "zamba2": "Mamba2",
    "mamba2": "Mamba2",
    "lfm2": "short convolution",
    "lfm2_moe": "short convolution",
    "kimi_linear": DELTA_ATTENTION,
    "mamba": "Mamba1",
    "falcon_mamba": "Mamba1",
    "jamba": "Mamba1",
    "minimax_text_01": "linear attention",
    "bailing_moe_linear": "linear attention",
}
"""Model type -> what its recurrent layers are."""

EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
"""What configurations call the number of experts of a layer."""

OF_LAYERS = ("ffn_config", "block_configs")
"""Fields with parts for experts, whose own names do not say so."""

ROLLED_BACK = frozenset({GATED_DELTA_RULE, "Mamba2", "short convolution"})
"""Recurrent layers whose state can be taken back to the last accepted token."""

MAMBA2_TYPES = frozenset({"mamba", "linear_attention"})
"""Names of Granite-4's recurrent layers: as published, and as transformers 5.14.1 reads them."""

UNCOUNTED_PREDICTORS = frozenset({"qwen3_next", "mimo", "mimo_v2_flash", "longcat_flash"})
"""Model types with a multi-token predictor, of which some configs count no layers."""

WITHOUT_ATTENTION = frozenset({"mamba", "mamba2", "falcon_mamba"})
"""Model types whose layers are all recurrent."""


def has_windows(text: Mapping[str, Any]) -> bool:
    """Whether layers attend to the last tokens alone, by the configuration of a language model."""
    types = text.get("layer_types")
    if types:
        return any("sliding" in kind or "chunked" in kind for kind in types)
    return bool(text.get("sliding_window")) and not _leaves_windows_out(text)


def _leaves_windows_out(text: Mapping[str, Any]) -> bool:
    """Whether no layer has the window that is named: Qwen2's way to switch windows off."""
    if text.get("use_sliding_window") is False:
        return True
    first, layers = text.get("max_window_layers"), text.get("num_hidden_layers")
    # Layers before that one attend to all tokens.
    return type(first) is int and type(layers) is int and first >= layers


@dataclass(frozen=True)
class ModelFacts:
    """One model of a command. ``values``: its config.json; ``text``: of its language model."""

    role: Role
    name: str
    values: Mapping[str, Any] = field(hash=False)
    text: Mapping[str, Any] = field(hash=False)
    other_recurrent: str | None = None
    """What its recurrent layers are, of a model type that is not in ``RECURRENT_TYPES``."""
    attention_free: bool = False
    """Whether vLLM's class has no attention layer, of a type not in ``WITHOUT_ATTENTION``."""
    formats: WeightFormats | None = None
    """What ModelSlim's description says; None for a model without one."""

    def number(self, name: str) -> int | None:
        """A whole number of the language model; None where the file has none of this name."""
        value = self.text.get(name)
        return value if type(value) is int else None

    @property
    def model_type(self) -> str:
        """Model type of the language model."""
        return str(self.text.get("model_type") or self.values.get("model_type") or "")

    @property
    def architectures(self) -> tuple[str, ...]:
        """Names of vLLM's classes, the first that it has being taken."""
        return tuple(self.values.get("architectures") or self.text.get("architectures") or ())

    @property
    def dtype(self) -> str:
        """Dtype that the file names, bfloat16 where it names none."""
        value = self.text.get("dtype") or self.text.get("torch_dtype")
        value = value or self.values.get("dtype") or self.values.get("torch_dtype")
        return str(value or "bfloat16").removeprefix("torch.")

    @property
    def quantization(self) -> str | None:
        """Method of the quantised weights; None for plain ones."""
        for part in (self.values, self.text):
            method = (part.get("quantization_config") or {}).get("quant_method")
            if method is not None:
                return str(method)
        return None if self.formats is None else "ascend"

    @property
    def recurrent(self) -> str | None:
        """What its recurrent layers are; None for a model of attention layers."""
        types = self.text.get("layer_types") or ()
        if self.model_type == "granitemoehybrid" and types and MAMBA2_TYPES.isdisjoint(types):
            return None
        return RECURRENT_TYPES.get(self.model_type, self.other_recurrent)

    @property
    def has_attention(self) -> bool:
        """Whether some layer attends."""
        return not self.attention_free and self.model_type not in WITHOUT_ATTENTION

    @property
    def is_compressed(self) -> bool:
        """DeepSeek-V4: every layer names its backend."""
        return bool(self.text.get("compress_ratios"))

    @property
    def attends_beside_states(self) -> bool:
        """Whether some layers keep recurrent states, and some attend."""
        return self.recurrent is not None and self.has_attention

    @property
    def has_indexer(self) -> bool:
        """Whether layers choose the keys that they attend to."""
        return self.number("index_topk") is not None

    @property
    def has_windows(self) -> bool:
        """Whether layers attend to the last tokens alone: those that it names, or all of them."""
        return has_windows(self.text)

    @property
    def kind(self) -> Kind:
        """Kind of its attention layers that keep all tokens."""
        if self.number("kv_lora_rank") is None:
            return Kind.FULL_ATTENTION
        return Kind.SPARSE_MLA if self.has_indexer else Kind.MLA

    @property
    def head_size(self) -> int | None:
        """Elements of a key, for MLA of the latent and the rope key; None: not in the file."""
        latent = self.number("kv_lora_rank")
        if latent is not None:
            return latent + (self.number("qk_rope_head_dim") or 0)
        # Zamba2 calls it so; its heads are twice as wide as those of other models.
        size = self.number("attention_head_dim") or self.number("head_dim")
        width, heads = self.number("hidden_size"), self.number("num_attention_heads")
        if size is not None or width is None or heads is None:
            return size
        return width // heads

    @property
    def num_experts(self) -> int:
        """Experts of a layer; 0 for a dense model."""
        return next((number for name in EXPERTS if (number := self.number(name))), 0)

    @property
    def is_dense(self) -> bool:
        """Whether no field speaks of experts.

        Their number alone does not tell: some files leave it to the class, or have one of each
        layer (``block_configs``).
        """
        return not any("expert" in name or "moe" in name or name in OF_LAYERS for name in self.text)

    @property
    def mtp_layers(self) -> int:
        """Layers of its own multi-token predictor."""
        names = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "n_predict")
        return next((number for name in names if (number := self.number(name))), 0)

    @property
    def has_predictor(self) -> bool:
        """Whether it has a multi-token predictor; configs of some families do not count layers."""
        return self.mtp_layers > 0 or self.model_type in UNCOUNTED_PREDICTORS


def read_model_facts(role: Role, name: str) -> ModelFacts:
    """The facts of a model's folder. Raises ConfigFileError."""
    folder = Path(name)
    values = read_config_file(folder)
    formats = read_weight_formats(folder, values)
    return ModelFacts(role, name, values, text_part(values), formats=formats)

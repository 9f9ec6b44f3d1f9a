# SPDX-License-Identifier: Apache-2.0
"""What a model's configuration and the files of its folder say: what decides how it is served."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mkv_ascend.layout.kind import Kind, Role

GATED_DELTA_RULE = "gated delta rule"
DELTA_ATTENTION = "Kimi delta attention (KDA)"
_QWEN3_5 = ("qwen3_5", "qwen3_5_moe", "qwen3_5_text", "qwen3_5_moe_text")
RECURRENT_TYPES: Mapping[str, tuple[str, ...]] = {
    GATED_DELTA_RULE: ("qwen3_next", *_QWEN3_5),
    "Mamba2": ("granitemoehybrid", "bamba", "falcon_h1", "nemotron_h", "zamba2", "mamba2"),
    "short convolution": ("lfm2", "lfm2_moe"),
    DELTA_ATTENTION: ("kimi_linear",),
    "Mamba1": ("mamba", "falcon_mamba", "jamba"),
    "linear attention": ("minimax_text_01", "bailing_moe_linear"),
}
"""What recurrent layers are -> model types that have them."""

EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
"""What configurations call the number of experts of a layer."""

ROLLED_BACK = frozenset({GATED_DELTA_RULE, "Mamba2", "short convolution"})
"""Recurrent layers whose state can be taken back to the last accepted token."""

ROPE = ("rope_parameters", "rope_scaling")
"""Where config.json files have the numbers of rotary embeddings, of transformers 5 and before."""

DESCRIPTION = "quant_model_description.json"
"""The file's name (``MODELSLIM_CONFIG_FILENAME`` of vllm-ascend)."""
INDEX = "model.safetensors.index.json"
OF_MISTRAL = "consolidated*.safetensors"
"""vLLM takes these in place of the others, with names of their own."""
MOST_BYTES = 256 << 20
"""Of a JSON file. The index of a model of 671 billion parameters has 8 MiB."""
INT8_CACHE = "C8"
_SCALE_OF_KEYS = re.compile(r"\.([0-9]{1,9})\.(?:.*\.)?k_proj\.kv_cache_scale$")
_SCALE_OF_LATENTS = ".fa_k.scale"
_FLOAT8 = re.compile(r"FP8|FP4")
"""In the kinds of weights whose operators only A5 has (``MXFP8`` and others)."""
MOST_SHOWN = 200


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
    """One model. ``values``: its configuration as vLLM has it; ``text``: of its language model.

    ``is_recurrent``, ``attention_free``: as vLLM's class says; whether some layers keep recurrent
    states, and whether none attends. ``formats``: what ModelSlim's description says; None for a
    model without one. ``asked_quantization``: as an option says, None where none does.
    ``plain_head_size``: elements of a head as vLLM says, None for a model that does not attend.
    """

    role: Role
    name: str
    values: Mapping[str, Any] = field(hash=False)
    text: Mapping[str, Any] = field(hash=False)
    is_recurrent: bool = False
    attention_free: bool = False
    formats: WeightFormats | None = None
    asked_quantization: str | None = None
    plain_head_size: int | None = None

    def number(self, name: str) -> int | None:
        """A whole number of the language model; None where it has none of this name."""
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
        if not self.is_recurrent:
            return None
        kinds = (kind for kind, types in RECURRENT_TYPES.items() if self.model_type in types)
        return next(kinds, "recurrent layers")

    @property
    def is_compressed(self) -> bool:
        """DeepSeek-V4: every layer names its backend."""
        return bool(self.text.get("compress_ratios"))

    @property
    def attends_beside_states(self) -> bool:
        """Whether some layers keep recurrent states, and some attend."""
        return self.recurrent is not None and not self.attention_free

    @property
    def has_indexer(self) -> bool:
        """Whether layers choose the keys that they attend to."""
        return self.number("index_topk") is not None

    @property
    def keeps_choices(self) -> bool:
        """Whether what a layer chooses is kept, for layers that attend to the same keys."""
        shared = "shared" in (self.text.get("indexer_types") or ())
        return shared or bool(self.text.get("use_index_cache"))

    @property
    def has_windows(self) -> bool:
        """Whether layers attend to the last tokens alone: those that it names, or all of them."""
        return has_windows(self.text)

    @property
    def has_several_positions(self) -> bool:
        """Whether a token has a position in time, rows and columns (M-RoPE)."""
        parts = [part.get(name) for part in (self.text, self.values) for name in ROPE]
        return any(isinstance(part, Mapping) and "mrope_section" in part for part in parts)

    @property
    def kind(self) -> Kind:
        """Kind of its attention layers that keep all tokens."""
        if self.number("kv_lora_rank") is None:
            return Kind.FULL_ATTENTION
        return Kind.SPARSE_MLA if self.has_indexer else Kind.MLA

    @property
    def head_size(self) -> int | None:
        """Elements of a key, for MLA of the latent and the rope key; None: not told."""
        latent = self.number("kv_lora_rank")
        if latent is None:
            return self.plain_head_size
        return latent + (self.number("qk_rope_head_dim") or 0)

    @property
    def num_experts(self) -> int:
        """Experts of a layer; 0 for a dense model."""
        return next((number for name in EXPERTS if (number := self.number(name))), 0)

    @property
    def mtp_layers(self) -> int:
        """Layers of its own multi-token predictor."""
        names = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "n_predict")
        return next((number for name in names if (number := self.number(name))), 0)


class ConfigFileError(ValueError):
    """A file that cannot be read, or holds what no model can have."""


def read_object(path: Path, most_bytes: int = MOST_BYTES) -> dict[str, Any] | None:
    """The JSON object of a file; None where there is no such file, or no file can have its name.

    Raises ConfigFileError when it cannot be read, or has more than ``most_bytes``.
    """
    # Of a name that is too long, pathlib raises an error.
    if not os.path.isfile(path):
        return None
    try:
        size = path.stat().st_size
        if size > most_bytes:
            raise ConfigFileError(f"{path} has {size} bytes, which no {path.name} has")
        values = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigFileError(f"{path} cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise ConfigFileError(f"{path} is not UTF-8: {error}") from None
    except RecursionError:
        raise ConfigFileError(f"{path} is nested too deeply") from None
    except ValueError as error:
        if isinstance(error, ConfigFileError):
            raise
        raise ConfigFileError(f"{path} is not JSON: {error}") from None
    if not isinstance(values, dict):
        raise ConfigFileError(f"{path} is not a JSON object")
    return values


@dataclass(frozen=True)
class WeightFormats:
    """``kinds``: of tensors, such as ``W8A8``. ``int8_layers``: layers with a cache of 8 bits.

    ``has_int8_latents``: layers of MLA have scales of their latents, which a node that decodes what
    others read keeps in 8 bits.
    """

    kinds: frozenset[str]
    int8_layers: frozenset[int] = frozenset()
    has_int8_latents: bool = False

    @property
    def float8_kinds(self) -> tuple[str, ...]:
        """Kinds of weights of floating-point numbers of 8 or 4 bits."""
        return tuple(sorted(kind for kind in self.kinds if _FLOAT8.search(kind)))


def read_weight_formats(folder: Path, values: Mapping[str, Any]) -> WeightFormats | None:
    """What the description in a model's folder says; None where there is none.

    Args:
        values: its config.json, which may hold the description as ``quantization_config``.

    Raises ConfigFileError when it cannot be read.
    """
    found: Mapping[str, Any] | None = read_object(folder / DESCRIPTION)
    if found is None:
        found = values.get("quantization_config")
        # vLLM fills in an empty name.
        if not isinstance(found, Mapping) or found.get("quant_method") not in (None, "", "ascend"):
            return None
    if not found:
        return None
    layers = (_SCALE_OF_KEYS.search(name) for name in found)
    int8 = {int(layer[1]) for layer in layers if layer is not None}
    latents = any(name.endswith(_SCALE_OF_LATENTS) for name in found)
    return WeightFormats(
        frozenset(
            value
            for name, value in found.items()
            if isinstance(value, str) and name.endswith(".weight")
        ),
        frozenset(int8) if found.get("kv_cache_type") == INT8_CACHE else frozenset(),
        latents and bool(found.get("fa_quant_type")),
    )


def broken_weights(folder: Path) -> Iterator[str]:
    """A sentence for each file of weights that vLLM would read and cannot, by its header.

    None for a folder without files of weights: a check may come before they are fetched.
    """
    from safetensors import SafetensorError, safe_open

    if not os.path.isdir(folder) or any(folder.glob(OF_MISTRAL)):
        return
    there = {file.name for file in folder.glob("*.safetensors")}
    listed = _listed(folder)
    for name in sorted(there & listed if listed else there):
        try:
            with safe_open(folder / name, "np"):
                pass
        except (OSError, SafetensorError) as error:
            yield f"{folder / name} cannot be read: {_shown(error)}"
    for name in sorted(listed - there if there else ()):
        yield f"there is no file {folder / _shown(name)}"


def _listed(folder: Path) -> frozenset[str]:
    """The files that the index names, which vLLM reads alone; none without an index."""
    try:
        found = (read_object(folder / INDEX) or {}).get("weight_map")
    except ConfigFileError:
        return frozenset()
    return frozenset(map(str, found.values())) if isinstance(found, dict) else frozenset()


def _shown(value: object) -> str:
    """A name of a file's, short and without what a terminal would take for a command."""
    text = str(value).encode("unicode_escape").decode("ascii")
    return text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}..."

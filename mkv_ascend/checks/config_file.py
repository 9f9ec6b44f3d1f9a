# SPDX-License-Identifier: Apache-2.0
"""Reading a model's config.json: every file gives a mapping of sound values, or one sentence."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mkv_ascend.checks.speculators_format import as_vllm_reads
from mkv_ascend.rules.json_file import ConfigFileError, read_object

__all__ = [
    "MOST_BYTES",
    "ConfigFileError",
    "check_values",
    "read_config_file",
    "text_part",
]

MOST_BYTES = 64 << 20
"""Published files have some kilobytes; a file of weights given by mistake has gigabytes."""
MOST_PROBLEMS = 5


@dataclass(frozen=True)
class Bounds:
    """The whole numbers that a field may have; null says that it is not given."""

    least: int
    most: int

    def __str__(self) -> str:
        return f"a whole number from {self.least} to {self.most}"


_COUNT = Bounds(1, 10_000)
_SIZE = Bounds(1, 10_000_000)
_TOKENS = Bounds(1, 1 << 40)

NUMBERS: Mapping[str, Bounds] = {
    "num_hidden_layers": _COUNT,
    "num_attention_heads": _COUNT,
    "num_key_value_heads": _COUNT,
    "head_dim": _SIZE,
    "global_head_dim": _SIZE,
    "hidden_size": _SIZE,
    "vocab_size": Bounds(1, 100_000_000),
    "max_position_embeddings": _TOKENS,
    # Some published files write 0 where there is no window.
    "sliding_window": Bounds(0, 1 << 40),
    "attention_chunk_size": Bounds(0, 1 << 40),
    "kv_lora_rank": _SIZE,
    "qk_rope_head_dim": Bounds(0, 10_000_000),
    "qk_nope_head_dim": Bounds(0, 10_000_000),
    "v_head_dim": _SIZE,
    "index_head_dim": _SIZE,
    "index_topk": _SIZE,
    "num_nextn_predict_layers": Bounds(0, 10_000),
    "mtp_num_hidden_layers": Bounds(0, 10_000),
    # transformers writes a name for each.
    "num_labels": Bounds(0, 1_000_000),
    "linear_num_key_heads": _COUNT,
    "linear_num_value_heads": _COUNT,
    "linear_key_head_dim": _SIZE,
    "linear_value_head_dim": _SIZE,
    "linear_conv_kernel_dim": _COUNT,
    "conv_L_cache": _COUNT,
}
"""Fields that must be whole numbers where they are given, by the names of transformers."""

PER_LAYER = frozenset({"num_attention_heads", "num_key_value_heads"})
"""Fields that some families give as a list, one number for each layer."""

WORDS = ("model_type", "dtype", "torch_dtype")
LISTS_OF_WORDS = ("architectures", "layer_types")
OBJECTS = ("text_config", "quantization_config")


def read_config_file(folder: Path) -> dict[str, Any]:
    """The config.json of a model's folder, its values checked.

    Raises ConfigFileError when there is none, it cannot be read, or a value is impossible.
    """
    path = folder / "config.json"
    values = read_object(path, MOST_BYTES)
    if values is None:
        raise ConfigFileError(
            f"there is no file {path}; give a directory with the model's config.json, or the name "
            "of a repository that lies in the cache of the Hugging Face hub"
        )
    values = as_vllm_reads(values)
    check_values(values, str(path))
    return values


def check_values(values: Mapping[str, Any], path: str) -> None:
    """Raise ConfigFileError for what no model can have; ``path``: the file, for the message."""
    problems = list(_problems(values, ""))
    if not problems:
        return
    more = f"; and {len(problems) - MOST_PROBLEMS} more" if len(problems) > MOST_PROBLEMS else ""
    raise ConfigFileError(f"{path}: {'; '.join(problems[:MOST_PROBLEMS])}{more}")


def text_part(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """The numbers of the language model: of a multi-modal one, its ``text_config``."""
    text = values.get("text_config")
    return text if isinstance(text, Mapping) else values


def _problems(values: Mapping[str, Any], prefix: str) -> Iterator[str]:
    """One text for each impossible value, with its name."""
    for name in OBJECTS:
        value = values.get(name)
        if name in values and not isinstance(value, Mapping) and not _may_be_null(name, value):
            yield f"{prefix}{name} is {_shown(value)}; a JSON object is expected"
    for name in WORDS:
        value = values.get(name)
        if value is not None and not isinstance(value, str):
            yield f"{prefix}{name} is {_shown(value)}; a word is expected"
    for name in LISTS_OF_WORDS:
        value = values.get(name)
        if value is not None and not _are_words(value):
            yield f"{prefix}{name} is {_shown(value)}; a list of words is expected"
    for name, bounds in NUMBERS.items():
        if not _fits(values.get(name), bounds, name in PER_LAYER):
            yield f"{prefix}{name} is {_shown(values[name])}; {bounds} is expected"
    layers, types = values.get("num_hidden_layers"), values.get("layer_types")
    if type(layers) is int and isinstance(types, list) and len(types) < layers:
        yield f"{prefix}layer_types has {len(types)} entries for {layers} layers"
    text = values.get("text_config")
    if isinstance(text, Mapping) and not prefix:
        yield from _problems(text, "text_config.")


def _may_be_null(name: str, value: object) -> bool:
    return value is None and name == "quantization_config"


def _are_words(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(word, str) for word in value)


def _fits(value: object, bounds: Bounds, per_layer: bool) -> bool:
    if value is None:
        return True
    if per_layer and isinstance(value, list):
        return all(_fits(one, bounds, False) for one in value)
    return type(value) is int and bounds.least <= value <= bounds.most


def _shown(value: object) -> str:
    try:
        text = json.dumps(value)
    except (ValueError, TypeError, RecursionError):
        return f"a {type(value).__name__} that cannot be shown"
    return text if len(text) <= 80 else f"{text[:80]}..."

# SPDX-License-Identifier: Apache-2.0
"""Tiny models quantised to 8 bits as ModelSlim or LLM Compressor write them, what they compute.

A checkpoint of ModelSlim has ``quant_model_description.json``, which names the kind of each tensor:

* ``W8A8_DYNAMIC``: ``weight`` int8, ``weight_scale`` for each output; inputs get a scale per token;
* ``W8A8``: besides, ``input_scale`` and ``input_offset`` for all inputs, ``deq_scale`` and
  ``quant_bias``, which undo both in the product;
* ``kv_cache_type`` ``C8``: ``kv_cache_scale`` and ``kv_cache_offset`` of ``k_proj`` and ``v_proj``,
  for each channel.

One of LLM Compressor (compressed-tensors) tells in ``config.json`` which matrices are quantised,
and which are not by their names. Theirs are those of ``W8A8_DYNAMIC``.

Scales are powers of two where an engine computes with their reciprocal in bfloat16, so that nothing
depends on how it is rounded. The judge is transformers in float32 with these weights, inputs, keys
and values (``rows``), and rounds to bfloat16 what each part of the model gives.
"""

from __future__ import annotations

import functools
import hashlib
import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from mkv_ascend import envs
from tests.support import prompts, reference
from tests.support.tiny_models import model_directory, store

DESCRIPTION = "quant_model_description.json"
WEIGHTS = "model.safetensors"
STATIC, DYNAMIC, FLOAT = "W8A8", "W8A8_DYNAMIC", "FLOAT"
LARGEST = 127
ATTENTION = "eight_bits"
"""Name of this file's attention among those of transformers."""


def quantised(
    model: str | Path, *, weights: str | None = None, cache: bool = False, coarser: int = 1
) -> Path:
    """Folder of a model, quantised now if it was not before.

    Args:
        model: name of a tiny one, or folder of its weights.
        weights: kind of the matrices of its layers. With ``W8A8`` those that project down are
            ``W8A8_DYNAMIC``, as in published checkpoints. None: all are plain.
        cache: whether keys and values are quantised (C8).
        coarser: how many times larger their scales are than they must be, a power of two.
    """
    source = model if isinstance(model, Path) else model_directory(model)
    code = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()
    asked = json.dumps([reference.checkpoint_digest(source), code, weights, cache, coarser])
    digest = hashlib.sha256(asked.encode()).hexdigest()[:12]
    kind = "-".join([source.name, *filter(None, [weights, "C8" if cache else None])])
    path = envs.CACHE.get() / "quantised" / f"{kind}-{digest}"
    with store.locked(path):
        if not (path / DESCRIPTION).is_file():
            with store.written_whole(path) as aside:
                _write(source, aside, weights, coarser if cache else None)
    return path


def compressed(name: str, ignored: Sequence[str] = ()) -> Path:
    """Folder of the tiny model ``name`` in the format compressed-tensors, made now if need be.

    Args:
        ignored: names of matrices that stay plain.
    """
    source = model_directory(name)
    code = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()
    asked = json.dumps([reference.checkpoint_digest(source), code, *ignored])
    digest = hashlib.sha256(asked.encode()).hexdigest()[:12]
    path = envs.CACHE.get() / "quantised" / f"{name}-compressed-{digest}"
    with store.locked(path):
        if not (path / "config.json").is_file():
            with store.written_whole(path) as aside:
                _write_compressed(source, aside, ignored)
    return path


def is_quantised(directory: Path) -> bool:
    """Whether a checkpoint was made by this file."""
    return (directory / DESCRIPTION).is_file() or _is_compressed(directory)


def _is_compressed(directory: Path) -> bool:
    return "quantization_config" in json.loads((directory / "config.json").read_text())


def rounds_inputs(directory: Path) -> bool:
    """Whether the inputs of matrices are rounded to whole numbers."""
    description = directory / DESCRIPTION
    if not description.is_file():
        return _is_compressed(directory)
    return any(kind in (STATIC, DYNAMIC) for kind in json.loads(description.read_text()).values())


def _write_compressed(source: Path, path: Path, ignored: Sequence[str]) -> None:
    model = reference.load_whole(_causal_models(), source)
    tensors = load_file(source / WEIGHTS)
    for layer, _ in _projections(model):
        if layer not in ignored:
            found = dynamic(tensors.pop(f"{layer}.weight").float())
            tensors |= {f"{layer}.{part}": found[part] for part in ("weight", "weight_scale")}
    shutil.copytree(source, path, dirs_exist_ok=True, ignore=_own_files())
    save_file(tensors, path / WEIGHTS, metadata={"format": "pt"})
    config = json.loads((path / "config.json").read_text())
    whole = {"num_bits": 8, "type": "int", "symmetric": True}
    group = {
        "targets": ["Linear"],
        "weights": {**whole, "strategy": "channel", "dynamic": False},
        "input_activations": {**whole, "strategy": "token", "dynamic": True},
    }
    config["quantization_config"] = {
        "quant_method": "compressed-tensors",
        "format": "int-quantized",
        "config_groups": {"group_0": group},
        "ignore": ["lm_head", *ignored],
    }
    (path / "config.json").write_text(json.dumps(config, indent=2) + "\n")


def _own_files() -> Any:
    return shutil.ignore_patterns(store.DESCRIPTION_FILE, WEIGHTS)


def _write(source: Path, path: Path, weights: str | None, coarser: int | None) -> None:
    model = reference.load_whole(_causal_models(), source)
    ranges = _Ranges(model)
    with ranges.watched():
        for text in prompts.text_prompts():
            reference_ids = reference.token_ids(source, text)
            with torch.inference_mode():
                model(input_ids=torch.tensor([reference_ids]), use_cache=False)
    tensors = load_file(source / WEIGHTS)
    described = dict.fromkeys(tensors, FLOAT)
    for layer, module in _projections(model):
        if weights is not None:
            kind = DYNAMIC if layer.endswith("down_proj") else weights
            matrix = tensors.pop(f"{layer}.weight")
            made = _static if kind == STATIC else dynamic
            found = made(matrix.float(), *ranges.inputs[module])
            tensors |= {f"{layer}.{part}": value for part, value in found.items()}
            described |= {f"{layer}.{part}": kind for part in found}
    if coarser is not None:
        described["kv_cache_type"] = "C8"
        for layer, largest in ranges.cached.items():
            scale = _power_of_two(largest / LARGEST) * coarser
            parts = {"kv_cache_scale": scale, "kv_cache_offset": torch.zeros_like(scale)}
            tensors |= {f"{layer}.{part}": value.bfloat16() for part, value in parts.items()}
            described |= dict.fromkeys((f"{layer}.{part}" for part in parts), "C8")
    shutil.copytree(source, path, dirs_exist_ok=True, ignore=_own_files())
    save_file(tensors, path / WEIGHTS, metadata={"format": "pt"})
    (path / DESCRIPTION).write_text(json.dumps(described, indent=1) + "\n")


def _causal_models() -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM


def _projections(model: Any) -> list[tuple[str, Any]]:
    """Matrices of the layers, by name, but for the one that MLA multiplies into others."""
    linear = torch.nn.Linear
    return [
        (name, part)
        for name, part in model.named_modules()
        if isinstance(part, linear) and name.endswith("_proj") and not name.endswith("kv_b_proj")
    ]


def _power_of_two(values: torch.Tensor) -> torch.Tensor:
    """The next power of two that is no smaller."""
    return torch.exp2(torch.log2(values.clamp(min=2.0**-20)).ceil())


def dynamic(matrix: torch.Tensor, *_range: float) -> dict[str, torch.Tensor]:
    """Whole numbers and a scale for each output, which the engine keeps in bfloat16."""
    scale = (matrix.abs().amax(dim=1, keepdim=True) / LARGEST).bfloat16().float()
    whole = (matrix / scale).round().clamp(-LARGEST, LARGEST).to(torch.int8)
    return {"weight": whole, "weight_scale": scale, "weight_offset": torch.zeros_like(scale)}


def _static(matrix: torch.Tensor, lowest: float, highest: float) -> dict[str, torch.Tensor]:
    """Besides, a scale and an offset of the inputs, and what undoes them in the product."""
    found = dynamic(matrix)
    scale = _power_of_two(torch.tensor([(highest - lowest) / (2 * LARGEST)]))
    offset = (-(highest + lowest) / 2 / scale).round().clamp(-LARGEST, LARGEST)
    bias = -(found["weight"].sum(dim=1, dtype=torch.int32) * int(offset))
    return {
        **found,
        "input_scale": scale,
        "input_offset": offset,
        "deq_scale": (scale * found["weight_scale"]).flatten(),
        "quant_bias": bias.to(torch.int32),
    }


class _Ranges:
    """What goes into the matrices of a model and into its cache while the block runs.

    Attributes:
        inputs: matrix -> smallest and largest input.
        cached: name of ``k_proj`` or ``v_proj`` -> largest magnitude of each channel.
    """

    def __init__(self, model: Any) -> None:
        self.inputs: dict[Any, tuple[float, float]] = {}
        self.cached: dict[str, torch.Tensor] = {}
        self._model = model

    @contextmanager
    def watched(self) -> Iterator[None]:
        hooks = [
            module.register_forward_pre_hook(self._note_input)
            for _, module in _projections(self._model)
        ]
        names = {module: name for name, module in self._model.named_modules()}

        def note(module: Any, key: torch.Tensor, value: torch.Tensor) -> Any:
            for part, states in (("k_proj", key), ("v_proj", value)):
                largest = states.abs().amax(dim=(0, 2)).flatten()
                name = f"{names[module]}.{part}"
                self.cached[name] = torch.maximum(largest, self.cached.get(name, largest))
            return key, value

        with _cached_through(self._model, note):
            yield
        for hook in hooks:
            hook.remove()

    def _note_input(self, module: Any, given: tuple[torch.Tensor]) -> None:
        lowest, highest = self.inputs.get(module, (0.0, 0.0))
        found = given[0]
        self.inputs[module] = min(lowest, float(found.min())), max(highest, float(found.max()))


@contextmanager
def _cached_through(model: Any, change: Any, first: int = 0) -> Iterator[None]:
    """Attention in which rows from ``first`` on see keys and values that ``change`` gives.

    Rows before it see plain ones: an engine attends in a whole prompt before it quantises.
    """
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface, eager_mask

    def attend(
        module: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor,
        scaling: float,
        **_others: Any,
    ) -> tuple[torch.Tensor, None]:
        parts = []
        pairs = ((slice(0, first), (key, value)), (slice(first, None), change(module, key, value)))
        for rows, (keys, values) in pairs:
            queries = query[:, :, rows].unflatten(1, (keys.shape[1], -1))
            scores = queries @ keys.unsqueeze(2).transpose(3, 4) * scaling
            scores = scores + attention_mask.unsqueeze(2)[:, :, :, rows]
            attended = scores.softmax(dim=-1) @ values.unsqueeze(2)
            parts.append(attended.bfloat16().float().flatten(1, 2))
        return torch.cat(parts, dim=2).transpose(1, 2).contiguous(), None

    AttentionInterface.register(ATTENTION, attend)
    AttentionMaskInterface.register(ATTENTION, eager_mask)
    before = model.config._attn_implementation
    model.set_attn_implementation(ATTENTION)
    try:
        yield
    finally:
        model.set_attn_implementation(before)


@functools.lru_cache(maxsize=4)
def load(directory: Path) -> tuple[Any, dict[str, torch.Tensor]]:
    """The model with dequantised matrices that rounds its inputs, and scales of its cache."""
    tensors = load_file(directory / WEIGHTS)
    scales = {name: tensors.pop(name).float() for name in list(tensors) if ".kv_cache" in name}
    if rounds_inputs(directory):
        model = _dequantised(directory, tensors)
    else:
        model = reference.load_whole(_causal_models(), directory)
    round_parts(model)
    return model.eval(), scales


def _dequantised(directory: Path, tensors: dict[str, torch.Tensor]) -> Any:
    model = _causal_models().from_config(_config(directory), attn_implementation="eager").float()
    for layer, module in _projections(model):
        part = {
            name.removeprefix(f"{layer}."): tensors.pop(name)
            for name in list(tensors)
            if name.startswith(f"{layer}.")
        }
        tensors[f"{layer}.weight"] = part["weight"].float() * part.get("weight_scale", 1.0)
        if "weight_scale" in part and "input_scale" not in part:
            module.register_forward_pre_hook(lambda _, given: (per_token(given[0]),))
        elif "input_scale" in part:
            scale, offset = float(part["input_scale"]), float(part["input_offset"])
            module.register_forward_pre_hook(
                functools.partial(_input_through_8_bits, scale=scale, offset=offset)
            )
    model.load_state_dict(tensors)
    return model


def round_parts(model: torch.nn.Module) -> None:
    """Let each part of a model give bfloat16, in float32."""
    for module in model.modules():
        if not [*module.children()]:
            module.register_forward_hook(_in_bfloat16)


def _in_bfloat16(_module: Any, _given: Any, output: Any) -> Any:
    """What a part of the model gives, rounded as an engine keeps it.

    Inputs of matrices then seldom lie on another side of the middle between two whole numbers.
    Complex numbers are rotations, of DeepSeek's class, which an engine keeps in float32.
    """
    real = isinstance(output, torch.Tensor) and output.is_floating_point()
    return output.bfloat16().float() if real else output


def _config(directory: Path) -> Any:
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(directory)
    # Weights are given dequantised.
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    return config


def per_token(states: torch.Tensor) -> torch.Tensor:
    """Rows as whole numbers of their own scale give them back."""
    scale = states.abs().amax(dim=-1, keepdim=True).clamp(min=1e-20) / LARGEST
    return (states / scale).round() * scale


def _input_through_8_bits(
    _module: Any, given: tuple[torch.Tensor], *, scale: float, offset: float
) -> tuple[torch.Tensor]:
    return (((given[0] / scale + offset).round().clamp(-128, 127) - offset) * scale,)


def rows(
    directory: str | Path, context: Sequence[int], tokens: Sequence[int], prompt: int
) -> torch.Tensor:
    """Logits after ``context`` and after each of ``tokens``.

    Args:
        prompt: tokens that were computed at once, before their keys and values were quantised.
    """
    model, scales = load(Path(directory))
    with torch.inference_mode(), cached_in_8_bits(model, scales, prompt):
        given = torch.tensor([[*context, *tokens]])
        logits = model(input_ids=given, use_cache=False).logits[0]
    return logits.float()[len(context) - 1 :]


def cached_in_8_bits(
    model: Any, scales: Mapping[str, torch.Tensor], prompt: int
) -> AbstractContextManager[None]:
    """Layers of ``model`` attend to keys and values of 8 bits where ``scales`` have theirs.

    So does a head on the model, whose layers have plain ones.
    """
    names = {module: name for name, module in model.named_modules()}

    def through_8_bits(module: Any, key: torch.Tensor, value: torch.Tensor) -> Any:
        states = []
        for part, given in (("k_proj", key), ("v_proj", value)):
            scale = scales.get(f"{names.get(module)}.{part}.kv_cache_scale")
            if scale is not None:
                scale = scale.view(given.shape[1], 1, given.shape[3])
                given = (given / scale).round().clamp(-128, 127) * scale
            states.append(given)
        return states

    return _cached_through(model, through_8_bits, prompt)


LATENTS_KIND = "FAKQuant"


def with_latents(source: Path, path: Path) -> Path:
    """A copy of a checkpoint in ``path`` whose target keeps latents of MLA in 8 bits.

    As ModelSlim writes it: ``fa_quant_type`` is ``FAKQuant``, and each layer has a scale and an
    offset of queries (for each head), latents and values.
    """
    shutil.copytree(source, path)
    config = json.loads((source / "config.json").read_text())
    tensors = load_file(source / WEIGHTS)
    names = dict.fromkeys(tensors, FLOAT) | {"fa_quant_type": LATENTS_KIND}
    for layer in range(config["num_hidden_layers"]):
        for part, heads in (("fa_q", config["num_attention_heads"]), ("fa_k", 1), ("fa_v", 1)):
            stem = f"model.layers.{layer}.self_attn.{part}"
            # Coarse scales, so that latents that were rounded by them would change tokens.
            tensors[f"{stem}.scale"] = torch.full((heads, 1), 2.0)
            tensors[f"{stem}.offset"] = torch.zeros(heads, 1, dtype=torch.int8)
            names |= {f"{stem}.scale": LATENTS_KIND, f"{stem}.offset": LATENTS_KIND}
    save_file(tensors, path / WEIGHTS, metadata={"format": "pt"})
    (path / DESCRIPTION).write_text(json.dumps(names, indent=1) + "\n")
    return path

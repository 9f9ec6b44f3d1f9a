# SPDX-License-Identifier: Apache-2.0
"""Files of weights that are broken, or hold less than config.json promises of a draft.

What the files of any class lack, the worker says when it has built the class (``unfilled.py`` of
the adapters), behind the loading of the target. Here is what config.json alone tells, at once.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from mkv_ascend.checks.facts import ServeFacts
from mkv_ascend.checks.model import ModelFacts
from mkv_ascend.checks.refusal import Refusal
from mkv_ascend.checks.weight_files import TensorFiles, holds_weights, is_of_predictor, tensors_of

__all__ = ["CHECKS"]

READ_BY_TENSOR = frozenset({"auto", "hf", "safetensors"})
"""Values of ``--load-format`` with which vLLM reads safetensors files."""
HEADS = ("eagle", "eagle3", "dflash")
"""Methods whose drafts join what they are given in one matrix, ``fc``."""
DENSE = frozenset({"llama", "mistral", "qwen2", "qwen3"})
"""Model types whose layers have the matrices of ``_matrices`` in vLLM's classes."""
PREDICTORS = re.compile(
    r"^(qwen3_next|qwen3_5|deepseek|glm4_moe|mimo|ernie|nemotron_h|exaone|longcat|step3p5|hy_v3"
    r"|pangu)"
)
"""Model types whose prediction layers have names that ``is_of_predictor`` knows."""
FUSED = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}
"""Names of several matrices in one, which vLLM loads as well."""
_IN_LAYER = re.compile(r"^(?:model\.)?(?:layers\.(\d{1,6})|midlayer)\.(.+)$")
MOST_NAMED = 5
POSSIBLE = "files with all that the model's config.json promises"
CHANGE = "download {} again, or correct its config.json or the method"


def broken_files(facts: ServeFacts) -> Iterator[Refusal]:
    """Files of weights that are cut short, no safetensors files or, of a draft, not there."""
    for model in _read_models(facts):
        found = tensors_of(model.name)
        of_draft = model is facts.draft
        problems = () if found is None else found.problems + (found.missing if of_draft else ())
        if of_draft and facts.loads_weights and not holds_weights(model.name):
            problems = (f"{model.name} has no files of weights",)
        if problems:
            yield _refusal(model, "; ".join(problems[:MOST_NAMED]))


def lacking_weights(facts: ServeFacts) -> Iterator[Refusal]:
    """A draft whose files lack tensors, or have some of another shape than config.json says."""
    speculation, draft = facts.speculation, facts.draft
    if speculation is None or draft is None or draft not in _read_models(facts):
        return
    found = tensors_of(draft.name)
    if found is None or found.problems or found.missing:
        return
    if speculation.method == "mtp":
        problems = list(_of_predictor(draft, found))
    elif speculation.method in ("draft_model", *HEADS):
        problems = list(_of_layers(draft, speculation.method, found))
    else:
        return
    if problems:
        more = f"; and {len(problems) - MOST_NAMED} more" if len(problems) > MOST_NAMED else ""
        yield _refusal(draft, "; ".join(problems[:MOST_NAMED]) + more)


def _read_models(facts: ServeFacts) -> list[ModelFacts]:
    """The models whose files vLLM reads tensor by tensor."""
    asked = facts.engine.get("load_format")
    own = None if facts.speculation is None else facts.speculation.options.get("draft_load_config")
    of_draft = own.get("load_format") if isinstance(own, Mapping) else asked
    formats = ((facts.target, asked), (facts.draft, of_draft))
    return [
        model
        for model, given in formats
        if model is not None and (given is None or given in READ_BY_TENSOR)
    ]


def _refusal(model: ModelFacts, problem: str) -> Refusal:
    change = CHANGE.format(model.name)
    return Refusal(
        "weights", f"weights of the {model.role} {model.name}: {problem}", POSSIBLE, change
    )


def _of_predictor(draft: ModelFacts, found: TensorFiles) -> Iterator[str]:
    """That there are no tensors of prediction layers."""
    layers = draft.number("num_hidden_layers")
    if not PREDICTORS.search(draft.model_type):
        return
    if not any(is_of_predictor(name, layers) for name in found.shapes):
        yield f"no tensor of multi-token prediction layers (mtp.*, or behind layer {layers})"


def _of_layers(draft: ModelFacts, method: str, found: TensorFiles) -> Iterator[str]:
    """Layers and matrices that are missing or of another shape."""
    count = draft.number("num_hidden_layers") or 0
    if found.layers:
        for layer in range(count):
            if layer not in found.layers:
                yield f"no tensor of layer {layer} of {count}"
    parts = [draft.values.get(name) for name in ("eagle_config", "dflash_config")]
    without_fc = any(
        isinstance(part, Mapping) and part.get("use_aux_hidden_state") is False for part in parts
    )
    if method in HEADS and not without_fc and not found.has_fc:
        yield "no tensor fc.weight, with which a head reads the target's states"
    if draft.model_type in DENSE and draft.quantization is None:
        yield from _of_dense_layers(draft, method, found, count)


def _of_dense_layers(
    draft: ModelFacts, method: str, found: TensorFiles, count: int
) -> Iterator[str]:
    expected = _matrices(draft, method)
    seen: dict[int, set[str]] = {}
    for name, shape in found.shapes.items():
        match = _IN_LAYER.match(name)
        if match is None:
            yield from _unequal(name, shape, _around_layers(draft, method).get(name))
            continue
        seen.setdefault(int(match[1] or 0), set()).add(match[2])
        yield from _unequal(name, shape, expected.get(match[2]))
    for layer, names in seen.items():
        fused = {part for one, parts in FUSED.items() if one in " ".join(names) for part in parts}
        for name in expected:
            if layer < count and name not in names and name.split(".")[1] not in fused:
                yield f"no tensor {name} in layer {layer}"


def _unequal(
    name: str, shape: tuple[int, ...], expected: tuple[int | None, ...] | None
) -> Iterator[str]:
    """That a tensor's shape is another one; None: of this length nothing is said."""
    if expected is None:
        return
    same = len(shape) == len(expected) and all(
        wanted in (None, length) for length, wanted in zip(shape, expected, strict=True)
    )
    if not same:
        wanted = ", ".join("any" if one is None else str(one) for one in expected)
        yield f"{name} has the shape {list(shape)}, and config.json says [{wanted}]"


def _matrices(draft: ModelFacts, method: str) -> dict[str, tuple[int | None, ...]]:
    """Name in a layer -> shape; empty where a number is not given."""
    width, inner, heads = map(
        draft.number, ("hidden_size", "intermediate_size", "num_attention_heads")
    )
    size, pairs = draft.head_size, draft.number("num_key_value_heads") or heads
    if width is None or inner is None or heads is None or size is None or pairs is None:
        return {}
    # The first layer of an EAGLE-3 head reads its embeddings beside the target's states.
    taken = None if method == "eagle3" else width
    return {
        "self_attn.q_proj.weight": (heads * size, taken),
        "self_attn.k_proj.weight": (pairs * size, taken),
        "self_attn.v_proj.weight": (pairs * size, taken),
        "self_attn.o_proj.weight": (width, heads * size),
        "mlp.gate_proj.weight": (inner, width),
        "mlp.up_proj.weight": (inner, width),
        "mlp.down_proj.weight": (width, inner),
    }


def _around_layers(draft: ModelFacts, method: str) -> dict[str, tuple[int | None, ...]]:
    """Name -> shape, of tensors outside the layers."""
    width = draft.number("hidden_size")
    if method in HEADS:
        return {"fc.weight": (width, None), "model.fc.weight": (width, None)}
    words = (draft.number("vocab_size"), width)
    return {"model.embed_tokens.weight": words, "lm_head.weight": words}


CHECKS = (broken_files, lacking_weights)

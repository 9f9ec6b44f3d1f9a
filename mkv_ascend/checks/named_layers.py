# SPDX-License-Identifier: Apache-2.0
"""The layers of target and draft by their names, as vLLM and a host name and order them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from mkv_ascend.checks.cached_layers import with_draft_window, with_indexers_apart
from mkv_ascend.checks.config_file import ConfigFileError, read_config_file
from mkv_ascend.checks.facts import LOOKED_UP
from mkv_ascend.checks.families import MIMO_V2, SHORT_CONVOLUTION
from mkv_ascend.checks.host_rules import HostRules
from mkv_ascend.checks.model_config import ModelConfig, read_models
from mkv_ascend.checks.model_layer import (
    ExplainError,
    ModelLayer,
    NamedLayer,
    NotFromNumbersError,
)
from mkv_ascend.checks.planning_inputs import Asked
from mkv_ascend.checks.quantised_layers import as_quantised
from mkv_ascend.config import parse_config
from mkv_ascend.layout.kind import Role

__all__ = [
    "layers_of",
    "layers_told",
    "longest_request",
    "method_of",
    "models_of",
    "tokens_drafted",
]

WITH_MODEL = frozenset({"draft_model", "eagle", "eagle3", "dflash", "dspark"})
"""Methods whose draft is read like any model."""
READ_THE_TARGET = ("gemma4_assistant", "gemma4_unified_assistant")
"""Types of heads without keys of their own."""
AFTER_TARGET = frozenset({"eagle", "eagle3", "dflash", "dspark", "mtp"})
"""Methods whose layers vLLM names and numbers as the target's, after its last."""
PREDICTORS = {
    "qwen3_next": "mtp.layers",
    "qwen3_5_text": "mtp.layers",
    "qwen3_5_moe_text": "mtp.layers",
    "deepseek_v4": "mtp",
    MIMO_V2: "model.mtp.layers",
}
"""Models whose predictors' layers vLLM names and numbers by themselves."""
CHANGING_LAYERS: dict[str, Any] = {
    "disable_sliding_window": False,
    "hf_overrides": {},
    "model_impl": "auto",
}
"""Fields with which a model has other layers than its config.json tells, and their defaults."""


def layers_told(asked: Asked, rules: HostRules) -> tuple[NamedLayer, ...]:
    """The layers of both models, also where only vLLM can tell what their caches come to.

    Raises:
        ExplainError: numbers do not tell them.
        SelectionError: a window is asked for that a layer cannot have.
    """
    for name, harmless in CHANGING_LAYERS.items():
        value = asked.engine.get(name)
        if value is not None and value != harmless:
            raise NotFromNumbersError(f"{name} is {value!r}, which only vLLM can read")
    target, draft = models_of(asked)
    return tuple(layers_of(asked, target, draft, rules))


def longest_request(asked: Asked, target: ModelConfig) -> int:
    """Its tokens; ExplainError where neither the options nor the target tell them."""
    return asked.number("max_model_len", 0) or target.number("max_position_embeddings")


def layers_of(
    asked: Asked, target: ModelConfig, draft: ModelConfig | None, rules: HostRules
) -> list[NamedLayer]:
    """The layers as this host names them, the draft's with the window that is asked for."""
    window = parse_config(asked.additional).drafting.window
    layers = _named(asked, target, draft, tokens_drafted(asked))
    tokens = longest_request(asked, target)
    if rules.indexer_is_a_layer:
        layers = list(with_indexers_apart(layers))
    return [with_draft_window(_as_this_host_names(one, rules), window, tokens) for one in layers]


def _as_this_host_names(named: NamedLayer, rules: HostRules) -> NamedLayer:
    if named.layer.module != SHORT_CONVOLUTION:
        return named
    return replace(named, name=named.name.removesuffix(SHORT_CONVOLUTION) + rules.short_convolution)


def tokens_drafted(asked: Asked) -> int:
    """Tokens of a proposal; 0 without a draft."""
    return 0 if asked.speculative is None else int(asked.speculative["num_speculative_tokens"])


def method_of(asked: Asked) -> str:
    """How drafts are made, as the command names it."""
    return str((asked.speculative or {}).get("method") or "draft_model")


def models_of(asked: Asked) -> tuple[ModelConfig, ModelConfig | None]:
    """Target and draft; None where nothing of a draft keeps a cache."""
    folder = _draft_folder(asked)
    if folder is None or _reads_the_target(folder):
        return read_models([asked.model])[0], None
    if folder.resolve() == asked.model.resolve():
        (target,) = read_models([asked.model])
        return target, target
    target, draft = read_models([asked.model, folder])
    return target, draft


def _reads_the_target(folder: Path) -> bool:
    """Whether the draft's layers have queries alone and read the target's caches."""
    try:
        return read_config_file(folder).get("model_type") in READ_THE_TARGET
    except ConfigFileError as error:
        raise ExplainError(str(error)) from error


def _draft_folder(asked: Asked) -> Path | None:
    method = method_of(asked)
    if asked.speculative is None or method in LOOKED_UP:
        return None
    model = asked.speculative.get("model")
    if method == "mtp":
        return asked.model if model is None else Path(model)
    if method not in WITH_MODEL:
        known = ", ".join(sorted(LOOKED_UP | WITH_MODEL | {"mtp"}))
        raise NotFromNumbersError(
            f"speculative method {method!r} cannot be explained by numbers alone; known: {known}"
        )
    if model is None and method == "dspark":
        raise NotFromNumbersError("weights of a dspark draft may lie in the target's own folder")
    if model is None:
        raise ExplainError(
            f"speculative method {method} needs a draft: give --draft, or model in "
            "--speculative-config"
        )
    return Path(model)


def _named(
    asked: Asked, target: ModelConfig, draft: ModelConfig | None, drafted: int
) -> list[NamedLayer]:
    """The layers of both models on one rank, as vLLM names and orders them: states come last."""
    ranks = asked.number("tensor_parallel_size", 1)
    dtype = _dtype(asked, target)
    layers = [
        NamedLayer(name, Role.TARGET, dtype, layer)
        for name, layer in _with_names(target.decoder, target.layers(ranks, drafted))
    ]
    if draft is not None:
        ranks = _draft_ranks(asked, ranks)
        layers += [
            NamedLayer(name, Role.DRAFT, dtype, layer)
            for name, layer in _of_draft(method_of(asked), target, draft, ranks, drafted)
        ]
    layers = as_quantised(layers, asked.model, _draft_folder(asked))
    with_dtype = (replace(named, state_dtype=target.state_dtype) for named in layers)
    return sorted(with_dtype, key=lambda named: bool(named.layer.states))


def _of_draft(
    method: str, target: ModelConfig, draft: ModelConfig, ranks: int, drafted: int
) -> Iterator[tuple[str, ModelLayer]]:
    """The layers of the draft with their names."""
    if method == "mtp":
        own = PREDICTORS.get(draft.model_type)
        first = 0 if own else target.number("num_hidden_layers")
        return _with_names(own or "model.layers", draft.mtp_layers(ranks), first)
    layers = draft.layers(ranks, drafted)
    if method in AFTER_TARGET:
        return _with_names("model.layers", layers, target.number("num_hidden_layers"))
    return _with_names(f"draft_model.{draft.decoder}", layers)


def _with_names(
    prefix: str, layers: Sequence[ModelLayer], first: int = 0
) -> Iterator[tuple[str, ModelLayer]]:
    """``first``: number of the first decoder layer."""
    for index, layer in enumerate(layers):
        depth = index if layer.depth is None else layer.depth
        yield f"{prefix}.{first + depth}.{layer.module}", layer


def _dtype(asked: Asked, target: ModelConfig) -> str:
    """Of the caches of both models: vLLM computes the draft in the target's dtype."""
    name = str(asked.engine.get("dtype") or "auto").removeprefix("torch.")
    if name == "auto":
        return target.dtype
    return {"half": "float16", "float": "float32"}.get(name, name)


def _draft_ranks(asked: Asked, ranks: int) -> int:
    given = (asked.speculative or {}).get("draft_tensor_parallel_size")
    wanted = ranks if given is None else given
    if wanted not in (1, ranks):
        raise ExplainError(
            f"draft_tensor_parallel_size is {wanted!r}; vLLM takes 1 or the target's, {ranks}"
        )
    return int(wanted)

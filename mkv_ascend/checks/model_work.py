# SPDX-License-Identifier: Apache-2.0
"""The work of a model's layers (``mkv_ascend.advice``), from the numbers of its config.json."""

from __future__ import annotations

from math import prod

from mkv_ascend.advice.work import Experts, LayerWork, ModelWork
from mkv_ascend.checks.families import MIMO_V2, QWEN3_5
from mkv_ascend.checks.model_config import ModelConfig
from mkv_ascend.checks.model_layer import ExplainError, ModelLayer
from mkv_ascend.layout.kind import Kind
from mkv_ascend.rules.facts import BLOCKS

__all__ = ["draft_work", "target_work"]

GATED_MATRICES = 3
"""Of a feed-forward layer: gate, up and down; so in every family that is read here."""
WITH_GATES = ("qwen3_next", *QWEN3_5)
"""Models whose attention has a gate beside each query."""
FP32_PER_ELEMENT = 2
"""Recurrent states are kept in 32 bits: two elements of 16."""
BITS = {"fp8": (8.0, 8.0), "mxfp4": (16.0, 4.25)}
"""``quant_method`` -> bits of a weight, and of a weight of an expert with its scales."""


def target_work(config: ModelConfig, ranks: int, bits: float | None = None) -> ModelWork:
    """One rank's share of a whole model. ``bits``: of a weight; None: as the config says.

    Raises:
        ExplainError: the numbers do not tell the sizes.
    """
    layers = config.layers(ranks, 0)
    if len(layers) != config.number("num_hidden_layers"):
        raise _untold(config, "several caches in a layer, or layers without one")
    work = tuple(_layer(config, layer, depth, ranks) for depth, layer in enumerate(layers))
    return _model(config, work, ranks, bits)


def draft_work(
    method: str, target: ModelConfig, draft: ModelConfig, ranks: int, bits: float | None = None
) -> ModelWork:
    """One rank's share of a draft of this method; ``mtp``: the target's own predictor.

    vLLM runs the layer of a predictor again for each token, so that one is read.
    """
    hidden = target.number("hidden_size")
    if method == "mtp":
        # MiMo-V2's predictor has an MLP where the model's last layer has experts.
        last = None if draft.model_type == MIMO_V2 else draft.number("num_hidden_layers") - 1
        layer = _layer(draft, draft.mtp_layers(ranks)[0], last, ranks)
        return _model(draft, (layer,), ranks, bits, 2 * hidden * hidden)
    if method not in ("eagle", "eagle3", *BLOCKS):
        return target_work(draft, ranks, bits)
    whole = target_work(draft, ranks, bits)
    vocabulary = draft.get("draft_vocab_size") or target.number("vocab_size")
    # The head is the target's or a smaller one; hidden states of the target go through one matrix.
    inputs = {"eagle": 2, "eagle3": 3}.get(method) or len(whole.layers)
    return ModelWork(
        whole.layers,
        vocabulary * hidden / ranks + inputs * hidden * draft.number("hidden_size"),
        whole.weight_bytes,
        whole.expert_bytes,
    )


def _model(
    config: ModelConfig,
    layers: tuple[LayerWork, ...],
    ranks: int,
    bits: float | None,
    more: float = 0.0,
) -> ModelWork:
    table = config.number("vocab_size") * config.number("hidden_size") / ranks
    weight, expert = (bits, bits) if bits else _bits(config)
    resident = 0.0 if config.get("tie_word_embeddings") else table
    return ModelWork(layers, table + more, weight / 8, expert / 8, resident)


def _bits(config: ModelConfig) -> tuple[float, float]:
    quantised = config.get("quantization_config")
    if not quantised:
        return 16.0, 16.0
    method = str(quantised.get("quant_method")) if isinstance(quantised, dict) else ""
    if method not in BITS:
        raise ExplainError(
            f"{config.folder}: how many bits a weight quantised by {method!r} has is not known "
            "here; give --weight-bits"
        )
    return BITS[method]


def _layer(config: ModelConfig, layer: ModelLayer, depth: int | None, ranks: int) -> LayerWork:
    mixer = _mixer(config, layer, ranks)
    dense, experts = _feed_forward(config, depth, ranks)
    return LayerWork(
        weights=mixer.weights + dense,
        cache=mixer.cache,
        window=layer.window,
        state=mixer.state,
        pair_flop=mixer.pair_flop,
        experts=experts,
        cube=6 if experts else 5,
        vector=7 if experts else 5,
        communication=2 if ranks > 1 else 0,
    )


def _mixer(config: ModelConfig, layer: ModelLayer, ranks: int) -> LayerWork:
    """The weights and the cache of what mixes tokens."""
    hidden = config.number("hidden_size")
    if layer.kind in (Kind.FULL_ATTENTION, Kind.SLIDING_WINDOW):
        gates = layer.num_heads if config.model_type in WITH_GATES else 0
        both = layer.head_size + layer.size_of_values
        elements = (layer.num_heads + layer.num_kv_heads) * both + gates * layer.head_size
        return LayerWork(
            hidden * elements,
            cache=layer.num_kv_heads * both,
            pair_flop=2 * layer.num_heads * both,
        )
    if layer.kind is Kind.MLA:
        return _latent(config, layer)
    if layer.kind is Kind.MAMBA and config.get("linear_num_key_heads"):
        key = config.number("linear_num_key_heads") * config.number("linear_key_head_dim")
        heads = config.number("linear_num_value_heads")
        value = heads * config.number("linear_value_head_dim")
        # Queries, keys, values and gates in, values out; two numbers of each head beside them.
        weights = hidden * (2 * key + 3 * value + 2 * heads) / ranks
        return LayerWork(weights, state=FP32_PER_ELEMENT * prod(layer.states[-1]))
    raise _untold(config, f"layers of kind {layer.kind}")


def _latent(config: ModelConfig, layer: ModelLayer) -> LayerWork:
    hidden, latent = config.number("hidden_size"), config.number("kv_lora_rank")
    rope, value = config.number("qk_rope_head_dim"), config.number("v_head_dim")
    nope = config.number("qk_nope_head_dim")
    queries = layer.num_heads * (nope + rope)
    rank = config.get("q_lora_rank")
    weights = rank * (hidden + queries) if rank else hidden * queries
    weights += hidden * (latent + rope) + latent * layer.num_heads * (nope + value)
    weights += layer.num_heads * value * hidden
    pair = 2 * layer.num_heads * (2 * latent + rope)
    return LayerWork(weights, cache=latent + rope, pair_flop=pair)


def _feed_forward(
    config: ModelConfig, depth: int | None, ranks: int
) -> tuple[float, Experts | None]:
    """Elements that every token needs, and the experts. ``depth``: None for a layer without any."""
    hidden = config.number("hidden_size")
    names = ("num_experts", "n_routed_experts", "num_local_experts")
    count = next((config.number(name) for name in names if config.get(name)), 0)
    if not count or depth is None or _is_dense(config, depth):
        return GATED_MATRICES * hidden * config.number("intermediate_size") / ranks, None
    size = config.get("moe_intermediate_size") or config.number("intermediate_size")
    shared = (config.get("n_shared_experts") or 0) * size
    shared += config.get("shared_expert_intermediate_size") or 0
    shared += config.get("shared_intermediate_size") or 0
    chosen = config.number("num_experts_per_tok")
    if not 0 < chosen <= count:
        raise ExplainError(
            f"{config.folder}: num_experts_per_tok is {chosen}, and there are {count} experts; "
            "correct it in config.json"
        )
    elements = GATED_MATRICES * hidden * size / ranks
    return hidden * count + GATED_MATRICES * hidden * shared / ranks, Experts(
        count, chosen, elements
    )


def _is_dense(config: ModelConfig, depth: int) -> bool:
    """Whether this layer of a model with experts has none."""
    step, with_experts = config.get("decoder_sparse_step") or 1, config.get("moe_layer_freq")
    if isinstance(with_experts, list) and not with_experts[depth]:
        return True
    is_first = depth < (config.get("first_k_dense_replace") or 0)
    return is_first or (depth + 1) % step != 0 or depth in (config.get("mlp_only_layers") or ())


def _untold(config: ModelConfig, what: str) -> ExplainError:
    return ExplainError(
        f"{config.folder}: its numbers do not tell the work of a {config.model_type} model: {what}"
    )

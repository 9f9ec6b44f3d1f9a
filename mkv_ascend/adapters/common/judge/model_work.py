# SPDX-License-Identifier: Apache-2.0
"""Weights, activations and work of models that were built without memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from mkv_ascend.advice.work import Cache, Experts, LayerWork, ModelWork, Weights, Works
from mkv_ascend.layout.component import StateExtent
from mkv_ascend.layout.kind import Kind
from mkv_ascend.layout.requirements import RetentionKind

if TYPE_CHECKING:
    import torch
    from vllm.config import VllmConfig

    from mkv_ascend.layout.planning import CachedLayer, PlanInputs

TOLD = frozenset(
    {Kind.FULL_ATTENTION, Kind.SLIDING_WINDOW, Kind.CHUNKED_LOCAL, Kind.MLA, Kind.MAMBA}
)
"""Kinds whose caches tell what a step reads: an indexer picks tokens, an encoder has its own."""
READ_THE_TARGET = ("eagle", "eagle3", "mtp", "dflash", "dspark")
"""Methods whose drafts take embeddings and head of the target where they are alike."""
SHARED = ("embed_tokens", "lm_head", "shared_head.head")


class UntoldError(ValueError):
    """Caches that do not tell how much of them a step reads."""


def works_of(
    config: VllmConfig, inputs: PlanInputs, runner: Any, draft: torch.nn.Module | None
) -> Works:
    """What a step of both models reads and computes. ``inputs``: of their plan.

    Raises:
        UntoldError: for kinds of layers that are not told.
    """
    from vllm.config import get_layers_from_vllm_config
    from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase

    untold = sorted({str(layer.layout.kind) for layer in inputs.layers} - TOLD)
    if untold:
        raise UntoldError(f"caches of kind {', '.join(untold)} do not tell what a step reads")
    by_name = {layer.layout.layer: layer for layer in inputs.layers}
    cached: dict[int, CachedLayer] = {}
    for name, module in get_layers_from_vllm_config(config, AttentionLayerBase).items():
        owner = runner.shared_kv_cache_layers.get(name, name)
        if owner in by_name:
            cached[id(module)] = by_name[owner]
    ranks = config.parallel_config.tensor_parallel_size
    of_draft = None if draft is None else _work(draft, cached, ranks)
    return Works(_work(runner.model, cached, ranks), of_draft)


def _work(
    model: torch.nn.Module, cached: Mapping[int, CachedLayer], tensor_parallel: int
) -> ModelWork:
    """The share of a model that this rank has."""
    tables, heads = _tables(model)
    # Heads that take the target's when they are loaded have none here, and a table as large.
    read = heads or tables
    claimed = {**tables, **heads}
    layers: Counter[LayerWork] = Counter()
    for layer in _decoder_layers(model, cached):
        own = {id(one): one for one in layer.parameters() if id(one) not in claimed}
        claimed |= own
        layers[_layer(layer, own, cached, tensor_parallel)] += 1
    # What decoding does not run is outside of it: the towers for images and sound.
    language: torch.nn.Module = getattr(model, "get_language_model", lambda: model)()
    read = read | {id(one): one for one in language.parameters() if id(one) not in claimed}
    in_layers = claimed.keys() - tables.keys() - heads.keys()
    return ModelWork(
        tuple(replace(layer, number=number) for layer, number in layers.items()),
        _weights(read.values()),
        _weights(
            one for one in model.parameters() if id(one) not in read and id(one) not in in_layers
        ),
    )


def _tables(
    model: torch.nn.Module,
) -> tuple[dict[int, torch.nn.Parameter], dict[int, torch.nn.Parameter]]:
    """Parameters of the tables of embeddings, and of heads; those of both are of heads."""
    from vllm.model_executor.layers.vocab_parallel_embedding import (
        ParallelLMHead,
        VocabParallelEmbedding,
    )

    tables: dict[int, torch.nn.Parameter] = {}
    heads: dict[int, torch.nn.Parameter] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        if not isinstance(module, VocabParallelEmbedding):
            continue
        # A head that is tied to the table may be the table itself.
        is_head = isinstance(module, ParallelLMHead) or name.rpartition(".")[2] == "lm_head"
        (heads if is_head else tables).update((id(one), one) for one in module.parameters())
    return tables, heads


def _decoder_layers(
    model: torch.nn.Module, cached: Mapping[int, CachedLayer]
) -> Iterator[torch.nn.Module]:
    """All members of the lists in which layers with a cache are; some have a feed-forward alone."""
    import torch

    found: dict[str, torch.nn.Module] = {}
    for path, module in model.named_modules():
        if id(module) not in cached:
            continue
        parts = path.split(".")
        for depth in range(1, len(parts)):
            container = model.get_submodule(".".join(parts[:depth]))
            if isinstance(container, torch.nn.ModuleList | torch.nn.ModuleDict):
                prefix = ".".join(parts[:depth])
                found |= {f"{prefix}.{name}": child for name, child in container.named_children()}
                break
        else:
            found[path] = module
    yield from found.values()


def _layer(
    layer: torch.nn.Module,
    own: Mapping[int, torch.nn.Parameter],
    cached: Mapping[int, CachedLayer],
    tensor_parallel: int,
) -> LayerWork:
    caches: list[Cache] = []
    state_bytes, experts = 0, None
    chosen: dict[int, torch.nn.Parameter] = {}
    for module in layer.modules():
        if (kept := cached.get(id(module))) is not None:
            caches += _cache(kept, module)
            state_bytes += _state_bytes(kept)
        elif hasattr(module, "local_num_experts") and hasattr(module, "top_k"):
            chosen |= _of_experts(module)
            experts = _experts(module, chosen.values())
    return LayerWork(
        _weights(one for key, one in own.items() if key not in chosen),
        tuple(caches),
        state_bytes,
        experts,
        # Operators of a layer are estimated, not counted on a device.
        cube=6 if experts else 5,
        vector=7 if experts else 5,
        communication=2 if tensor_parallel > 1 else 0,
    )


def _of_experts(module: Any) -> dict[int, torch.nn.Parameter]:
    """Parameters that have a part for each expert of this rank."""
    count = module.local_num_experts
    return {
        id(one): one
        for one in module.parameters(recurse=False)
        if one.dim() > 1 and one.shape[0] == count
    }


def _experts(module: Any, parameters: Iterable[torch.nn.Parameter]) -> Experts:
    count, all_weights = module.local_num_experts, _weights(parameters)
    # With experts spread over ranks, tokens choose as many of each rank's on average.
    share = module.top_k * count / module.global_num_experts
    each = Weights(all_weights.elements // count, all_weights.bytes // count)
    return Experts(count, share, each)


def _cache(kept: CachedLayer, module: Any) -> Iterator[Cache]:
    """Keys and values; nothing for states."""
    layout, retention = kept.layout, kept.retention
    rows = [part for part in layout.components if not isinstance(part.extent, StateExtent)]
    if not rows:
        return
    token_bytes = sum(part.bytes_per_block for part in rows) / layout.tokens_per_block
    window = 0 if retention.kind is RetentionKind.ALL else retention.extent
    if layout.kind is Kind.MLA:
        # Queries meet latents and rope keys; what is weighed are the latents.
        width = 2 * module.kv_lora_rank + module.qk_rope_head_dim
    else:
        width = module.head_size + module.head_size_v
    yield Cache(token_bytes, 2 * module.num_heads * width, window)


def _state_bytes(kept: CachedLayer) -> int:
    states = [part for part in kept.layout.components if isinstance(part.extent, StateExtent)]
    return sum(part.bytes_per_block for part in states)


def _weights(parameters: Iterable[torch.nn.Parameter]) -> Weights:
    found = list(parameters)
    return Weights(sum(one.numel() for one in found), sum(one.nbytes for one in found))


def weight_bytes(target: Any, draft: Any, method: str | None) -> tuple[int, int]:
    """Bytes of the target and of the draft on one rank; 0 for no draft.

    A head's embeddings and logits are counted where they are unlike those of the target, which
    vLLM has it share else.
    """
    own = {id(tensor): (name, tensor) for name, tensor in _tensors(target)}
    found = sum(tensor.nbytes for _, tensor in own.values())
    if draft is None:
        return found, 0
    alike = {(tensor.shape, tensor.dtype) for name, tensor in own.values() if _is_shared(name)}
    more = {
        id(tensor): tensor
        for name, tensor in _tensors(draft)
        if id(tensor) not in own
        and not (
            method in READ_THE_TARGET and _is_shared(name) and (tensor.shape, tensor.dtype) in alike
        )
    }
    return found, sum(tensor.nbytes for tensor in more.values())


def _tensors(model: Any) -> Iterator[tuple[str, torch.Tensor]]:
    yield from model.named_parameters()
    yield from model.named_buffers()


def _is_shared(name: str) -> bool:
    return any(part in name for part in SHARED)


def activation_bytes(config: VllmConfig) -> int:
    """An estimate of what the largest step takes beside weights and caches.

    A layer's input, its residual, queries, keys and values, and the wider of two matrices of an
    MLP, in 16 bits; logits of each request in 32 bits and once more in 16.
    """
    text: Any = config.model_config.hf_text_config
    ranks = config.parallel_config.tensor_parallel_size
    hidden = int(getattr(text, "hidden_size", 0) or 0)
    wide = int(getattr(text, "intermediate_size", 0) or 4 * hidden)
    tokens = config.scheduler_config.max_num_batched_tokens
    rows = min(tokens, config.scheduler_config.max_num_seqs * (1 + config.num_speculative_tokens))
    words = int(config.model_config.get_vocab_size())
    return 2 * tokens * (8 * hidden + 3 * wide // ranks) + 6 * rows * words

# SPDX-License-Identifier: Apache-2.0
"""What an engine would plan, from the numbers of two config.json files: no vLLM, no weights.

``commands/from_vllm.py`` finds the same by having vLLM build the models. Tests compare both with
engines.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

from mkv_ascend import host_versions
from mkv_ascend.attention.entry import DeviceGeneration
from mkv_ascend.attention.request import Environment
from mkv_ascend.checks.block_sizes import BlockSizes, takes_asked_size
from mkv_ascend.checks.cached_layers import (
    cached_layers,
    with_draft_window,
    with_indexers_apart,
)
from mkv_ascend.checks.config_file import ConfigFileError, read_config_file
from mkv_ascend.checks.facts import LOOKED_UP
from mkv_ascend.checks.families import MIMO_V2, SHORT_CONVOLUTION
from mkv_ascend.checks.groups_of_vllm import groups_of_compressed, groups_of_equal_pages
from mkv_ascend.checks.host_rules import HostRules
from mkv_ascend.checks.model_config import ModelConfig, read_models
from mkv_ascend.checks.model_layer import (
    ExplainError,
    ModelLayer,
    NamedLayer,
    NotFromNumbersError,
)
from mkv_ascend.checks.planning_inputs import Asked, Found
from mkv_ascend.checks.quantised_layers import as_quantised
from mkv_ascend.config import MkvConfig, parse_config
from mkv_ascend.layout.grouping import GroupingOptions
from mkv_ascend.layout.kind import Kind, Role
from mkv_ascend.layout.planning import CachedLayer, PlanInputs, share_one_table
from mkv_ascend.layout.report_text import count
from mkv_ascend.layout.retention import Request

__all__ = ["ADMITTED_TOKENS", "find"]

ADMITTED_TOKENS = 2048
"""Tokens of a step where the user names none: vLLM's for a server whose device has less than 70
GiB (``EngineArgs.get_batch_defaults``)."""
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
READ_BY_VLLM: dict[str, Any] = {
    "kv_cache_dtype": "auto",
    "kv_transfer_config": None,
    "ec_transfer_config": None,
    "disable_hybrid_kv_cache_manager": False,
    "disable_sliding_window": False,
    "pipeline_parallel_size": 1,
    "prefill_context_parallel_size": 1,
    "decode_context_parallel_size": 1,
    "hf_overrides": {},
    "model_impl": "auto",
    "mamba_cache_dtype": "auto",
    "mamba_ssm_cache_dtype": "auto",
    "mamba_block_size": None,
    "mamba_cache_mode": "none",
    "num_gpu_blocks_override": None,
}
"""Fields whose effect on caches only vLLM knows, and the values with which they have none."""


def find(asked: Asked, rules: HostRules, environment: Environment | None = None) -> Found:
    """What an engine with these fields would plan on a host with these rules.

    ``environment``: Ascend A2 when left out.

    Raises:
        NotFromNumbersError: only vLLM's classes can tell.
        ExplainError: it cannot be planned at all; SelectionError where no backend fits a layer.
    """
    _refuse_what_vllm_reads(asked)
    options = parse_config(asked.additional)
    target, draft = _models(asked)
    drafted = _drafted(asked)
    layers = _named(asked, target, draft, drafted)
    if rules.indexer_is_a_layer:
        layers = list(with_indexers_apart(layers))
    tokens = asked.number("max_model_len", 0) or target.number("max_position_embeddings")
    layers = [
        with_draft_window(_as_this_host_names(named, rules), options.drafting.window, tokens)
        for named in layers
    ]
    environment = environment or Environment(DeviceGeneration.A2)
    _refuse_other_sizes(layers, environment)
    _refuse_unplanned(layers, rules)
    takes_hits = _takes_hits(asked, layers, target, rules)
    sizes = _block_sizes(asked, layers, tokens, rules)
    if takes_hits and not _has_states(layers, Role.TARGET):
        sizes = replace(sizes, asked_states=0)  # a draft's, whose blocks have a manager of ours
    cached = cached_layers(
        layers,
        sizes,
        drafted,
        options.attention,
        environment,
        asked.engine.get("attention_backend"),
    )
    groups = _groups(cached, sizes.padded)
    inputs = PlanInputs(
        cached if groups is None else tuple(chain.from_iterable(groups)),
        Request(tokens, 1 + drafted),
        _tokens_in_flight(asked, rules),
        _grouping_options(options, takes_hits),
        None if groups is None else tuple(tuple(x.layout.layer for x in group) for group in groups),
    )
    models = [("target", _described(target, layers, Role.TARGET))]
    if draft is not None:
        models.append(("draft", _described(draft, layers, Role.DRAFT)))
    notes = _other_vocabulary(asked, target, draft)
    return Found(inputs, tuple(models), notes, padded_bytes=sizes.padded)


def _tokens_in_flight(asked: Asked, rules: HostRules) -> int:
    """Most tokens that are scheduled while those before them are held.

    ``VllmConfig.max_in_flight_tokens`` of vLLM 0.30.0: two batches, if a step is scheduled while
    the one before it runs, and the model is not spread over a pipeline.
    """
    tokens = asked.number("max_num_batched_tokens", ADMITTED_TOKENS)
    return tokens * 2 if rules.counts_batches_in_flight and _schedules_ahead(asked) else tokens


def _schedules_ahead(asked: Asked) -> bool:
    """Whether a step is scheduled while one runs: by default, if a draft runs on a device."""
    if (given := asked.engine.get("async_scheduling")) is not None:
        return bool(given)
    speculative = asked.speculative or {}
    on_host = speculative.get("method") in LOOKED_UP - {"ngram_gpu"}
    return not on_host and not speculative.get("disable_padded_drafter_batch")


def _as_this_host_names(named: NamedLayer, rules: HostRules) -> NamedLayer:
    if named.layer.module != SHORT_CONVOLUTION:
        return named
    return replace(named, name=named.name.removesuffix(SHORT_CONVOLUTION) + rules.short_convolution)


def _refuse_what_vllm_reads(asked: Asked) -> None:
    for name, harmless in READ_BY_VLLM.items():
        value = asked.engine.get(name)
        if value is not None and value != harmless:
            raise NotFromNumbersError(f"{name} is {value!r}, which only vLLM can read")
    if parse_config(asked.additional).kv_cache.draft_dtype is not None:
        raise NotFromNumbersError("kv_cache.draft_dtype is given, which only vLLM can read")


def _refuse_other_sizes(layers: Sequence[NamedLayer], environment: Environment) -> None:
    """Caches of DeepSeek-V4 have other dtypes and pages on A5."""
    generation = environment.device_generation
    if generation is DeviceGeneration.A5 and any(named.layer.compressed for named in layers):
        raise NotFromNumbersError(f"sizes of DeepSeek-V4's caches on {generation} are not known")


def _refuse_unplanned(layers: Sequence[NamedLayer], rules: HostRules) -> None:
    """Caches that vllm-ascend arranges itself, counted by no plan."""
    if all(named.layer.compressed for named in layers) and not rules.plans_compressed:
        raise NotFromNumbersError(
            f"{host_versions.vllm_ascend()} groups and arranges the caches of DeepSeek-V4 itself"
        )


def _grouping_options(options: MkvConfig, takes_hits: bool) -> GroupingOptions:
    layout = options.layout
    return GroupingOptions(
        layout.objective,
        layout.max_padding_fraction,
        max_block_size=layout.max_block_size,
        prefix_caching=takes_hits,
    )


def _takes_hits(
    asked: Asked, layers: Sequence[NamedLayer], target: ModelConfig, rules: HostRules
) -> bool:
    """Whether vLLM looks for prefix hits.

    Not beside states of a draft that cannot read a hit itself (``about_draft``).
    """
    if _has_states(layers, Role.TARGET):
        return _hits_beside_states(asked, rules)
    draft = [named.layer for named in layers if named.role is Role.DRAFT]
    if any(layer.states for layer in draft):
        unread = any(layer.window for layer in draft)
        unread |= target.is_multimodal and not asked.engine.get("language_model_only")
        if unread or asked.number("data_parallel_size", 1) > 1:
            return False
    return asked.engine.get("enable_prefix_caching") is not False


def _has_states(layers: Sequence[NamedLayer], role: Role) -> bool:
    return any(named.layer.states for named in layers if named.role is role)


def _hits_beside_states(asked: Asked, rules: HostRules) -> bool:
    """Whether vLLM looks for prefix hits beside states of the target, asked or by itself."""
    given = asked.engine.get("enable_prefix_caching")
    return rules.hits_beside_states if given is None else bool(given)


def _drafted(asked: Asked) -> int:
    """Tokens of a proposal; 0 without a draft."""
    return 0 if asked.speculative is None else int(asked.speculative["num_speculative_tokens"])


def _method(asked: Asked) -> str:
    return str((asked.speculative or {}).get("method") or "draft_model")


def _models(asked: Asked) -> tuple[ModelConfig, ModelConfig | None]:
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
    method = _method(asked)
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
            for name, layer in _of_draft(_method(asked), target, draft, ranks, drafted)
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


def _block_sizes(
    asked: Asked, layers: Sequence[NamedLayer], tokens: int, rules: HostRules
) -> BlockSizes:
    target = [named.layer for named in layers if named.role is Role.TARGET]
    beside_states = len({bool(layer.states) for layer in target}) == 2
    compressed = any(layer.compressed is not None for layer in target)
    taken = compressed or takes_asked_size(asked.engine, beside_states)
    given = asked.engine.get("block_size") if taken else None
    sizes = BlockSizes.of_layers(layers, given, tokens, rules.equal_pages)
    if not _has_states(layers, Role.TARGET) or not _hits_beside_states(asked, rules):
        return sizes
    if not rules.hits_beside_states:
        raise NotFromNumbersError(
            "with prefix caching vLLM chooses which states are kept", kept_block=sizes.attention
        )
    return sizes.with_hits_beside_states()


def _groups(
    layers: Sequence[CachedLayer], padded: int | None
) -> list[Sequence[CachedLayer]] | None:
    """vLLM's groups where an engine takes them; None where it searches for groups of its own.

    Raises NotFromNumbersError where vLLM fails to group layers of DeepSeek-V4.
    """
    if share_one_table(layers):
        return [layers]
    if all(layer.layout.kind is Kind.COMPRESSED_MLA for layer in layers):
        found = groups_of_compressed(layers)
        if found is None:
            raise NotFromNumbersError("vllm-ascend has no groups for these layers of DeepSeek-V4")
        return found
    if any(layer.layout.role is Role.DRAFT for layer in layers):
        return None
    return groups_of_equal_pages(layers, padded)


def _other_vocabulary(
    asked: Asked, target: ModelConfig, draft: ModelConfig | None
) -> tuple[str, ...]:
    """What vLLM refuses of a draft model, and what no cache depends on."""
    if draft is None or _method(asked) != "draft_model":
        return ()
    sizes: list[Any] = [model.get("vocab_size") for model in (target, draft)]
    if None in sizes or sizes[0] == sizes[1]:
        return ()
    return (f"vLLM refuses this draft: its vocabulary has {sizes[1]} tokens, not {sizes[0]}",)


def _described(model: ModelConfig, layers: Sequence[NamedLayer], role: Role) -> str:
    number = count(sum(named.role is role for named in layers), "layer")
    dtype = next(named.dtype for named in layers)
    return f"{model.folder.resolve().name} ({model.model_type}, {number}, {dtype})"

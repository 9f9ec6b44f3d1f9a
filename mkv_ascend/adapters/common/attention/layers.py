# SPDX-License-Identifier: Apache-2.0
"""Gives every attention layer the backend that the options, or its kind, select.

vLLM's layers take a backend as the argument ``attn_backend``, but models do not pass it. The layer
then asks the platform, which knows neither the layer nor the model. Both constructors are wrapped,
so that ``attention/selection.py`` fills in the argument. The layer keeps the choice in
``layer.mkv_ascend_choice``.
"""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any

import torch
from vllm.config import get_current_vllm_config, get_layers_from_vllm_config
from vllm.distributed.parallel_state import get_pp_group
from vllm.model_executor.layers.attention.chunked_local_attention import ChunkedLocalAttention
from vllm.model_executor.layers.attention.cross_attention import CrossAttention
from vllm.model_executor.layers.attention.encoder_only_attention import EncoderOnlyAttention
from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase
from vllm.v1.attention.backend import AttentionType

from mkv_ascend.adapters.common.attention import selection_inputs
from mkv_ascend.adapters.common.attention.backends import backend_class, bound_to
from mkv_ascend.adapters.common.attention.building import current_model
from mkv_ascend.adapters.common.attention.records import BACKEND_PER_LAYER, WINDOW
from mkv_ascend.adapters.common.attention.selection_inputs import check_used, set_window
from mkv_ascend.adapters.common.options import options_of
from mkv_ascend.adapters.common.patches import attention
from mkv_ascend.adapters.logging import get_logger
from mkv_ascend.adapters.patching import Patch, expect
from mkv_ascend.attention import catalog, selection
from mkv_ascend.attention.arguments import OF_LAYER_CLASSES, SLIDING_WINDOW, optional_arguments
from mkv_ascend.attention.entry import PLAIN_DTYPES, LayerRequest
from mkv_ascend.attention.options import WindowBound
from mkv_ascend.attention.report import LayerRow, layer_rows
from mkv_ascend.attention.selection import Choice, SelectionError, SelectionOptions
from mkv_ascend.layout.kind import Kind, Role

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheConfig

    from mkv_ascend.attention.entry import BackendEntry

logger = get_logger(__name__)

CHOICE = "mkv_ascend_choice"
"""Attribute of a layer that holds its ``Choice``."""

WITHOUT_CACHE = (AttentionType.ENCODER, AttentionType.ENCODER_ONLY)
BIDIRECTIONAL = (*WITHOUT_CACHE, AttentionType.ENCODER_DECODER)


KINDS_OF_CLASSES = {
    ChunkedLocalAttention: Kind.CHUNKED_LOCAL,
    CrossAttention: Kind.CROSS_ATTENTION,
    EncoderOnlyAttention: Kind.FULL_ATTENTION,
}
"""Layer classes that make their own variant of the platform's backend -> their kind."""


choose_backend = Patch(BACKEND_PER_LAYER)


@choose_backend.also(target="vllm.model_executor.layers.attention.attention:Attention.__init__")
def _choose_backend(original: Any, layer: Any, *args: Any, **kwargs: Any) -> None:
    """``Attention.__init__`` with the backend that selection chose for this layer."""
    _initialise(_attention_request, original, layer, *args, **kwargs)


@choose_backend.also(
    target="vllm.model_executor.layers.attention.mla_attention:MLAAttention.__init__"
)
def _choose_mla_backend(original: Any, layer: Any, *args: Any, **kwargs: Any) -> None:
    _initialise(_mla_request, original, layer, *args, **kwargs)


def _initialise(
    make_request: Callable[[Any, dict[str, Any]], LayerRequest],
    original: Any,
    layer: Any,
    *args: Any,
    **kwargs: Any,
) -> None:
    bound = _signature(original).bind(layer, *args, **kwargs)
    bound.apply_defaults()
    given = attention.backend_of_this_device(bound.arguments["attn_backend"])
    model = current_model()
    _set_cache_dtype(bound.arguments, model.role)
    if model.role is Role.DRAFT:
        names_its_own = given is not None or type(layer) in KINDS_OF_CLASSES
        set_window(layer, bound.arguments, names_its_own, get_current_vllm_config())
    request = make_request(layer, bound.arguments)
    if given is not None and type(layer) not in KINDS_OF_CLASSES:
        bound.arguments["attn_backend"] = bound_to(given, model)
        _require_no_cast(bound.arguments)
        if (entry := _entry_of(given)) is not None:
            selection.require_computed(request, entry)
        original(*bound.args, **bound.kwargs)
        return
    choice = _choose(request)
    # A variant that the layer's class made for itself is kept; it was only checked above.
    casts = choice.request.cast_dtype is not None
    if given is None:
        backend = backend_class(
            choice.backend,
            model,
            casts_to_cache=casts,
            windows_ahead=choice.request.kind is Kind.SLIDING_WINDOW and model.role is Role.DRAFT,
        )
    else:
        backend = bound_to(given, model)
        _require_no_cast(bound.arguments)
    bound.arguments["attn_backend"] = backend
    original(*bound.args, **bound.kwargs)
    selection.require_computed(choice.request, choice.backend, type(layer.impl))
    setattr(layer, CHOICE, choice)
    _bound_the_window(layer, choice)
    attention.size_the_output(layer, choice.request.name)
    for change in _of_this_host:
        change(layer)


_signature = functools.cache(inspect.signature)

_of_this_host: list[Callable[[Any], None]] = []


_cache_dtypes_of_this_host: list[Callable[[dict[str, Any]], None]] = []


def also_decide_cache_dtypes(decide: Callable[[dict[str, Any]], None]) -> None:
    """Call ``decide`` with the arguments of each layer whose cache has no dtype of our option."""
    if decide not in _cache_dtypes_of_this_host:
        _cache_dtypes_of_this_host.append(decide)


def also_change(change: Callable[[Any], None]) -> None:
    """Call ``change`` with each layer once its backend is chosen: what one host alone needs."""
    if change not in _of_this_host:
        _of_this_host.append(change)


def _set_cache_dtype(arguments: dict[str, Any], role: Role) -> None:
    """Give a layer of the draft a cache of the dtype that ``kv_cache.draft_dtype`` names.

    Where it names none, the host may decide.
    """
    config = get_current_vllm_config()
    dtype = options_of(config).kv_cache.draft_dtype
    if role is not Role.DRAFT or dtype is None:
        for decide in _cache_dtypes_of_this_host:
            decide(arguments)
        return
    own = copy.copy(arguments["cache_config"] or config.cache_config)
    own.cache_dtype = dtype
    arguments["cache_config"] = own


def _require_no_cast(arguments: dict[str, Any]) -> None:
    """Refuse a cache of another dtype for layers whose class names their backend.

    Raises:
        SelectionError: their cache would have another plain dtype than the model.
    """
    dtype, cache_config = _dtype_name(torch.get_default_dtype()), arguments["cache_config"]
    cache_dtype = "auto" if cache_config is None else _cache_dtype(cache_config)
    if cache_dtype in PLAIN_DTYPES and dtype in PLAIN_DTYPES and cache_dtype != dtype:
        raise SelectionError(
            f"{arguments['prefix']}: its class names its backend, which keeps a cache of the "
            f"model's dtype {dtype}, not {cache_dtype}. Leave out kv_cache.draft_dtype "
            "(or --kv-cache-dtype), or choose another model"
        )


def _choose(request: LayerRequest) -> Choice:
    config = get_current_vllm_config()
    options = selection_inputs.options(config, request.role)
    return selection.select_backend(request, options, selection_inputs.environment(config))


def _attention_request(layer: Any, arguments: dict[str, Any]) -> LayerRequest:
    cache_config = arguments["cache_config"]
    window = arguments["per_layer_sliding_window"]
    if window is None and cache_config is not None:
        window = cache_config.sliding_window
    # The window that the cache configuration names for all layers is one of the layer's own.
    asked = {**arguments, **arguments["extra_impl_args"], SLIDING_WINDOW: window}
    heads = arguments["num_heads"]
    kind = Kind.FULL_ATTENTION if window is None else Kind.SLIDING_WINDOW
    return LayerRequest(
        kind=KINDS_OF_CLASSES.get(type(layer), kind),
        head_size=arguments["head_size"],
        head_size_v=arguments["head_size_v"] or arguments["head_size"],
        num_heads=heads,
        num_kv_heads=heads if arguments["num_kv_heads"] is None else arguments["num_kv_heads"],
        arguments=_optional(layer, asked),
        non_causal=arguments["attn_type"] in BIDIRECTIONAL,
        keeps_keys=arguments["attn_type"] not in WITHOUT_CACHE,
        **_common(layer, arguments),
    )


def _optional(layer: Any, arguments: dict[str, Any]) -> frozenset[str]:
    """What the layer asks for of what backends compute or not, and its class for itself."""
    classes = {base.__name__ for base in type(layer).__mro__}
    own = {argument for name, argument in OF_LAYER_CLASSES.items() if name in classes}
    given = {name: arguments[name] for name in arguments.keys() - {"self", "extra_impl_args"}}
    return optional_arguments(given) | own


def _mla_request(layer: Any, arguments: dict[str, Any]) -> LayerRequest:
    return LayerRequest(
        arguments=_optional(layer, arguments),
        kind=Kind.SPARSE_MLA if arguments["use_sparse"] else Kind.MLA,
        head_size=arguments["kv_lora_rank"] + arguments["qk_rope_head_dim"],
        num_heads=arguments["num_heads"],
        **_common(layer, arguments),
    )


def _common(layer: Any, arguments: dict[str, Any]) -> dict[str, Any]:
    cache_config = arguments["cache_config"]
    return {
        "name": arguments["prefix"],
        "role": current_model().role,
        "layer_class": type(layer).__name__,
        "dtype": _dtype_name(torch.get_default_dtype()),
        "kv_cache_dtype": "auto" if cache_config is None else _cache_dtype(cache_config),
        "block_size": None if cache_config is None else _block_size(cache_config),
    }


def _block_size(cache_config: Any) -> int | None:
    """Tokens of a block; None where it is not settled.

    vLLM 0.30 chooses it only when a hybrid model is built, from the size that was asked for or its
    default, and ``with_kernel_blocks`` a draft's.
    """
    if current_model().role is Role.DRAFT:
        return None
    size: int = cache_config.block_size
    by_default = getattr(cache_config, "DEFAULT_BLOCK_SIZE", None)
    if by_default is None:
        return size
    default = size == by_default and not cache_config.user_specified_block_size
    return None if default or get_current_vllm_config().model_config.is_hybrid else size


def _dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _cache_dtype(cache_config: Any) -> str:
    name = str(cache_config.cache_dtype)
    return {"fp8": "float8_e4m3fn", "fp8_e4m3": "float8_e4m3fn"}.get(name, name)


def _bound_the_window(layer: Any, choice: Choice) -> None:
    """Pass a window of W tokens as W - 1 to operators whose left bound is inclusive.

    Raises:
        ValueError: a window of one token, which vllm-ascend would then take for no window.
    """
    if choice.request.kind is not Kind.SLIDING_WINDOW:
        return
    config = options_of(get_current_vllm_config())
    if config.attention.window_bound is not WindowBound.EXACT:
        return
    implementation = layer.impl
    expect(
        getattr(implementation, "sliding_window", None) == layer.sliding_window,
        WINDOW.name,
        f"{type(implementation).__name__}.sliding_window is not the layer's window",
    )
    if layer.sliding_window < 2:
        raise ValueError(
            f"{choice.request.name}: a sliding window of {layer.sliding_window} token cannot be "
            "passed to fused_infer_attention; windows of 2 tokens and more can"
        )
    implementation.sliding_window = layer.sliding_window - 1


def chosen_layers(config: VllmConfig) -> dict[str, Any]:
    """Name -> layer, for every layer whose backend was chosen here, in the order of creation."""
    layers = get_layers_from_vllm_config(config, AttentionLayerBase)
    return {name: layer for name, layer in layers.items() if hasattr(layer, CHOICE)}


def check_options(config: VllmConfig) -> None:
    """Check, after all models are built, that every option applies to a layer.

    Raises:
        SelectionError: a pattern of ``attention.layers`` matches no layer of either model, or
            ``kv_cache.draft_dtype`` or ``drafting.window`` applies to no layer.
    """
    requests = [getattr(layer, CHOICE).request for layer in chosen_layers(config).values()]
    if config.parallel_config.pipeline_parallel_size > 1:
        requests = _of_all_stages(requests)
    options = SelectionOptions(attention=options_of(config).attention)
    selection.require_all_matched(options, [request.name for request in requests])
    dtype = options_of(config).kv_cache.draft_dtype
    if dtype is not None and not any(request.role is Role.DRAFT for request in requests):
        raise SelectionError(
            f"kv_cache.draft_dtype is {dtype!r}, but no layer of the draft has a KV cache whose "
            "backend is chosen; leave it out"
        )
    check_used(config, [x for x in requests if x.role is Role.DRAFT])
    for warning in selection.unused_options(options, requests):
        logger.warning("%s", warning)


def _of_all_stages(requests: list[LayerRequest]) -> list[LayerRequest]:
    """The requests of all pipeline stages; each stage holds only some of the layers."""
    group = get_pp_group()
    stages: list[list[LayerRequest]] = [[] for _ in range(group.world_size)]
    torch.distributed.all_gather_object(stages, requests, group=group.cpu_group)
    return [request for stage in stages for request in stage]


def all_choices(config: VllmConfig, draft_layers: Collection[str]) -> list[Choice]:
    """The backend of every attention layer, including backends that a layer's class names.

    Args:
        draft_layers: names of the draft's layers; needed for layers that were not built here.
    """
    choices = []
    for name, layer in get_layers_from_vllm_config(config, AttentionLayerBase).items():
        role = Role.DRAFT if name in draft_layers else Role.TARGET
        choice = getattr(layer, CHOICE, None) or _choice_of_class(name, layer, role)
        if choice is not None:
            choices.append(choice)
    return choices


def rows_of_layers(
    config: VllmConfig, draft_layers: Collection[str], kv_cache_config: KVCacheConfig
) -> tuple[LayerRow, ...]:
    """Each layer with its backend and its KV group, in the order of creation."""
    groups = {
        name: kv_group
        for kv_group, group in enumerate(kv_cache_config.kv_cache_groups)
        for name in group.layer_names
    }
    return layer_rows(all_choices(config, draft_layers), groups)


def _entry_of(backend: type[Any]) -> BackendEntry | None:
    """The catalog's entry of a class of backends, or of the class that it is derived from."""
    paths = (f"{base.__module__}:{base.__qualname__}" for base in backend.__mro__)
    return next(filter(None, map(catalog.find_class, paths)), None)


def _choice_of_class(name: str, layer: Any, role: Role) -> Choice | None:
    """The choice of a layer whose class names its backend; None if the catalog lacks it."""
    backend = layer.get_attn_backend()
    path = f"{backend.__module__}:{backend.__qualname__}"
    entry = catalog.find_class(path)
    if entry is None:
        logger.warning(
            "%s: its class %s names the backend %s, which is not in the catalog of mkv_ascend; "
            "it is used as it is and left out of the table of backends",
            name,
            type(layer).__name__,
            path,
        )
        return None
    kind = min(entry.kinds)
    request = LayerRequest(
        name, role, kind, type(layer).__name__, dtype="auto", head_size=0, layer_backend=path
    )
    return Choice(request, entry, selection.ChosenBy.LAYER, f"named by {type(layer).__name__}")

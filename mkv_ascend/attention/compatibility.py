# SPDX-License-Identifier: Apache-2.0
"""Why a backend cannot serve a layer: one text for each requirement that it misses."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from mkv_ascend.attention.arguments import described
from mkv_ascend.attention.entry import (
    BackendEntry,
    Environment,
    GraphSupport,
    LayerRequest,
    OperatorLimits,
)


def reasons_against(
    backend: BackendEntry, request: LayerRequest, environment: Environment
) -> tuple[str, ...]:
    """Everything that keeps ``backend`` from serving the layer here; empty when it can."""
    if request.kind not in backend.kinds:
        # The other requirements say nothing about a kind or device it was not made for.
        return (f"it serves {_words(backend.kinds)}, not {request.kind}",)
    if environment.device_generation not in backend.generations:
        runs_on = _words(backend.generations)
        return (f"it runs on {runs_on}, not on {environment.device_generation}",)
    reasons = list(_environment_reasons(backend, request, environment))
    if not backend.chosen_by_layer:
        if ignored := request.arguments - backend.computed(request.keeps_keys):
            reasons.append(f"it does not compute {described(ignored)}")
        reasons += _tensor_reasons(backend, request, environment)
        if request.non_causal and not backend.non_causal:
            reasons.append("it serves causal attention only")
    return tuple(reasons)


def _words(values: Iterable[object]) -> str:
    return ", ".join(sorted(str(value) for value in values))


def _environment_reasons(
    backend: BackendEntry, request: LayerRequest, environment: Environment
) -> Iterator[str]:
    if missing := _missing(backend.required_modules, environment):
        yield f"it needs {missing}, which is not installed"
    if environment.batch_invariant:
        if backend.batch_invariant_modules is None:
            yield "its results depend on the batch, and VLLM_BATCH_INVARIANT is set"
        elif missing := _missing(backend.batch_invariant_modules, environment):
            yield f"for VLLM_BATCH_INVARIANT it needs {missing}, which is not installed"
        if request.has_sink and backend.batch_invariant_modules is not None:
            yield "with sinks its results depend on the batch, and VLLM_BATCH_INVARIANT is set"
    graphs_refused = environment.acl_graphs and backend.graphs is GraphSupport.NEVER
    if graphs_refused and not backend.chosen_by_layer:
        yield "it cannot run inside a full ACL graph; ask for piecewise graphs or --enforce-eager"


def _missing(modules: Iterable[str], environment: Environment) -> str:
    return _words(name for name in modules if not environment.module_available(name))


def _tensor_reasons(
    backend: BackendEntry, request: LayerRequest, environment: Environment
) -> Iterator[str]:
    limits = OperatorLimits(backend.model_dtypes, backend.head_sizes)
    if not request.keeps_keys:
        limits = backend.without_cache or limits
    if request.dtype not in limits.dtypes | environment.extra_dtypes:
        yield f"it takes {_words(limits.dtypes)}, not {request.dtype}"
    if request.keeps_keys:
        yield from _cache_reasons(backend, request, environment)
    if not limits.head_sizes.holds(request.head_size):
        yield f"its head sizes are {limits.head_sizes}, not {request.head_size}"
    value_size = request.head_size_v if request.keeps_keys else None
    wanted = dict(backend.other_value_sizes).get(request.head_size, request.head_size)
    if value_size not in (None, wanted):
        yield f"values need the size {wanted} beside heads of {request.head_size}, not {value_size}"
    limit = backend.max_queries_per_kv_head
    if limit is not None and request.num_heads > limit * request.num_kv_heads:
        yield (
            f"at most {limit} query heads may share a key head, not "
            f"{request.num_heads} over {request.num_kv_heads}"
        )


def _cache_reasons(
    backend: BackendEntry, request: LayerRequest, environment: Environment
) -> Iterator[str]:
    cache_dtype = request.dtype if request.kv_cache_dtype == "auto" else request.kv_cache_dtype
    if cache_dtype not in backend.kv_cache_dtypes | environment.extra_dtypes:
        yield f"its cache holds {_words(backend.kv_cache_dtypes)}, not {cache_dtype}"
    elif request.cast_dtype is not None and (request.has_sink or not backend.casts_to_cache):
        where = "with sinks " if backend.casts_to_cache else ""
        yield f"{where}its cache holds the model's dtype, {request.dtype}, not {request.cast_dtype}"
    blocks = backend.kernel_block_sizes
    if request.block_size is not None and all(request.block_size % size for size in blocks):
        yield (
            f"its kernel blocks of {' or '.join(map(str, blocks))} tokens do not divide "
            f"--block-size {request.block_size}"
        )

# SPDX-License-Identifier: Apache-2.0
"""Attention: heads of unlike sizes, caches bound as layers take them, numbers of chosen keys."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any

import torch
from vllm.model_executor.layers.attention import Attention, MLAAttention
from vllm.model_executor.layers.mamba.abstract import MambaBase

from mkv_ascend.adapters.common.runner_host import PLANNED_CACHES
from mkv_ascend.adapters.patching import Patch, expect, patch, record, replaced

# Layers with values of another head size than their keys, such as MiMo-V2's (192 and 128).
#
# Three things keep vllm-ascend 0.23.0 from running them. vLLM's classes of such models name a
# backend for CUDA. The projection to queries, keys and values gives values the size of keys. The
# attention's output is viewed with the size of keys.

OTHER_DEVICES = "vllm.v1.attention.backends."
"""Modules of vLLM's own backends, none of which runs on an NPU."""


def backend_of_this_device(given: type[Any] | None) -> type[Any] | None:
    """The backend that a layer's class or model names; None for one of another device."""
    return None if given is not None and given.__module__.startswith(OTHER_DEVICES) else given


def size_the_output(layer: Any, name: str) -> None:
    """Let the implementation of ``layer`` view its output with the head size of values."""
    head_size_v = getattr(layer, "head_size_v", None)
    if head_size_v is None or head_size_v == layer.head_size:
        return
    expect(
        getattr(layer.impl, "head_size", None) == layer.head_size,
        project_values.record.name,
        f"{type(layer.impl).__name__}.head_size is not the layer's, for {name}",
    )
    layer.impl.head_size = head_size_v


@patch(
    name="values of another head size than keys",
    target=(
        "vllm_ascend.ops.linear:AscendQKVParallelLinear.__init__",
        "vllm_ascend.attention.attention_v1:AscendAttentionBackendImpl.__init__",
    ),
    reads=(
        "vllm_ascend.ops.linear:AscendColumnParallelLinear.__init__",
        "vllm_ascend.attention.attention_v1:AscendAttentionBackendImpl.forward",
    ),
)
def project_values(original: Any, projection: Any, *args: Any, **kwargs: Any) -> None:
    """``AscendQKVParallelLinear.__init__`` with rows for values of their own head size."""
    from vllm_ascend.ops.linear import AscendColumnParallelLinear

    given = inspect.signature(original).bind(projection, *args, **kwargs).arguments
    size, value_size = given["head_size"], given.get("v_head_size")
    if value_size in (None, size):
        original(projection, *args, **kwargs)
        return
    made = _made_of(AscendColumnParallelLinear.__init__, size, value_size)
    with replaced(AscendColumnParallelLinear, "__init__", made):
        original(projection, *args, **kwargs)


def _made_of(initialise: Any, size: int, value_size: int) -> Any:
    """``initialise`` of the base class, with rows for values of ``value_size`` elements."""

    def with_values(self: Any, *args: Any, output_size: int, **kwargs: Any) -> None:
        queries, keys, values = self.output_sizes
        expect(
            output_size == queries + keys + values and keys == values,
            project_values.record.name,
            "AscendQKVParallelLinear.output_sizes are not those of queries, keys and values",
        )
        self.output_sizes = [queries, keys, values // size * value_size]
        initialise(self, *args, output_size=sum(self.output_sizes), **kwargs)

    return with_values


# Models whose layers have heads of two sizes (Gemma 4: windows of 256, full attention of 512).
#
# In every step vllm-ascend fills rows of cosines and sines for the whole process. They are as
# wide as the model's largest head, but come from the rotary module that was made first, which may
# belong to another layer. The step then ends in a RuntimeError. Layers other than MLA rotate by
# their own tables and never read these rows.

ROWS = record(
    name="heads of two sizes",
    target=(
        "vllm_ascend.ops.rotary_embedding:_cos",
        "vllm_ascend.ops.rotary_embedding:_sin",
    ),
    reads=("vllm_ascend.ops.rotary_embedding:update_cos_sin",),
)


def drop_rows_of_other_sizes() -> None:
    """Stop filling rows of a size that the recorded table lacks; call this after a load."""
    from vllm_ascend.ops import rotary_embedding

    table, rows = rotary_embedding._cos_sin_cache, rotary_embedding._cos
    if table is None or rows is None or table.shape[-1] == rows.shape[-1]:
        return
    rotary_embedding._cos = rotary_embedding._sin = None


# Caches of a draft's layers, bound as those layers take them.

OF_VLLM = (Attention, MLAAttention, MambaBase)
"""Layers that take the cache tensors themselves, not a list of them."""


bind_as_layers_take = Patch(PLANNED_CACHES)


@bind_as_layers_take.also(
    target="vllm_ascend.worker.model_runner_v1:NPUModelRunner.initialize_kv_cache_tensors"
)
def _bind(original: Any, runner: Any, *args: Any, **kwargs: Any) -> dict[str, Any]:
    """As vllm-ascend's; vLLM's own layers take the caches themselves."""
    caches: dict[str, Any] = original(runner, *args, **kwargs)
    for name, cache in caches.items():
        layer = runner.compilation_config.static_forward_context[name]
        if isinstance(layer, OF_VLLM) and isinstance(layer.kv_cache, list):
            layer.kv_cache = cache
    return caches


# How many keys a sparse layer chooses: its model's ``index_topk``.
#
# vllm-ascend always asks for 2048, whatever the model says; the published models say 2048. The
# layer's indexer holds the number (``topk_tokens``).

COUNT_OF_VLLM_ASCEND = 2048


class _Counting:
    """A namespace of operators whose indexers choose ``count`` keys; all else is as it is."""

    def __init__(self, namespace: Any, count: int) -> None:
        self._namespace, self._count = namespace, count

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._namespace, name)
        if name in ("ops", "_C_ascend"):
            return _Counting(found, self._count)
        if not name.startswith("npu_lightning_indexer"):
            return found
        return lambda **given: found(**{**given, "sparse_count": self._count})


@contextlib.contextmanager
def choosing_keys(count: int, choose: Callable[..., Any]) -> Iterator[None]:
    """Let the device's adaptor choose so many keys while the block runs.

    Args:
        choose: the method of the device's adaptor.

    Raises:
        NotImplementedError: on other generations, whose adaptors call other operators.
    """
    import torch_npu
    from vllm_ascend.device.device_op import BaseDeviceAdaptor

    if count == COUNT_OF_VLLM_ASCEND:
        yield
        return
    if choose.__qualname__.partition(".")[0] != BaseDeviceAdaptor.__name__:
        raise NotImplementedError(
            f"index_topk is {count}; on this device generation layers choose "
            f"{COUNT_OF_VLLM_ASCEND} keys. Use a model with that index_topk"
        )
    device_op = import_module(BaseDeviceAdaptor.__module__)
    with (
        replaced(device_op, "torch", _Counting(torch, count)),
        replaced(device_op, "torch_npu", _Counting(torch_npu, count)),
    ):
        yield

# SPDX-License-Identifier: Apache-2.0
"""Layers whose values have another head size than their keys, MiMo-V2's for one (192 and 128).

Three things keep vllm-ascend 0.23.0 from running them: such models of vLLM name a backend for
CUDA, the projection to queries, keys and values is made as if values had the size of keys, and the
attention's output is viewed with the size of keys.
"""

from __future__ import annotations

import functools
import inspect
from typing import Any

from mkv_ascend.adapters.guards import expect, replaced

OTHER_DEVICES = "vllm.v1.attention.backends."
"""Modules of vLLM's own backends, none of which runs on an NPU."""

PROJECTION = "projection with values of another size"
OUTPUT = "head size of values"


def own_backend(given: type[Any] | None) -> type[Any] | None:
    """The backend that a layer's class or model names; None for one of another device."""
    return None if given is not None and given.__module__.startswith(OTHER_DEVICES) else given


def size_the_output(layer: Any, name: str) -> None:
    """Let the implementation of ``layer`` view its output with the head size of values."""
    head_size_v = getattr(layer, "head_size_v", None)
    if head_size_v is None or head_size_v == layer.head_size:
        return
    expect(
        getattr(layer.impl, "head_size", None) == layer.head_size,
        OUTPUT,
        f"{type(layer.impl).__name__}.head_size is not the layer's, for {name}",
    )
    layer.impl.head_size = head_size_v


def install() -> None:
    """Wrap the constructor of vllm-ascend's projection. Idempotent."""
    from vllm_ascend.ops.linear import AscendColumnParallelLinear, AscendQKVParallelLinear

    original = AscendQKVParallelLinear.__init__
    if hasattr(original, "mkv_ascend_original"):
        return
    signature = inspect.signature(original)
    expect(
        {"head_size", "v_head_size"} <= set(signature.parameters),
        PROJECTION,
        "AscendQKVParallelLinear.__init__ has no head_size and v_head_size",
    )

    @functools.wraps(original)
    def initialise(self: Any, *args: Any, **kwargs: Any) -> None:
        given = signature.bind(self, *args, **kwargs).arguments
        size, value_size = given["head_size"], given.get("v_head_size")
        if value_size in (None, size):
            original(self, *args, **kwargs)
            return
        made = _made_of(AscendColumnParallelLinear.__init__, size, value_size)
        with replaced(AscendColumnParallelLinear, "__init__", made):
            original(self, *args, **kwargs)

    initialise.mkv_ascend_original = original  # type: ignore[attr-defined]
    AscendQKVParallelLinear.__init__ = initialise


def _made_of(initialise: Any, size: int, value_size: int) -> Any:
    """``initialise`` of the base class, with rows for values of ``value_size`` elements."""

    def with_values(self: Any, *args: Any, output_size: int, **kwargs: Any) -> None:
        queries, keys, values = self.output_sizes
        expect(
            output_size == queries + keys + values and keys == values,
            PROJECTION,
            "AscendQKVParallelLinear.output_sizes are not those of queries, keys and values",
        )
        self.output_sizes = [queries, keys, values // size * value_size]
        initialise(self, *args, output_size=sum(self.output_sizes), **kwargs)

    return with_values

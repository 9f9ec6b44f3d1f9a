# SPDX-License-Identifier: Apache-2.0
"""The spec of a dense layer that is drafted with beside an MLA target.

vLLM's dense layer with a sliding window asks the configuration that it is given whether the model
has MLA, and refuses. The configuration is the target's, also when the layer is the draft's.
"""

from __future__ import annotations

import copy
import functools
import inspect
from typing import TYPE_CHECKING, Any

from vllm.model_executor.layers.attention import Attention

from mkv_ascend.adapters.guards import expect

if TYPE_CHECKING:
    from vllm.config import VllmConfig


def install() -> None:
    """Wrap ``Attention.get_kv_cache_spec``. Idempotent."""
    original = Attention.get_kv_cache_spec
    if hasattr(original, "mkv_ascend_original"):
        return
    parameters = tuple(inspect.signature(original).parameters)
    expect(
        parameters == ("self", "vllm_config"),
        "dense layers beside MLA",
        f"Attention.get_kv_cache_spec takes {parameters}, not (self, vllm_config)",
    )

    @functools.wraps(original)
    def get_kv_cache_spec(self: Any, vllm_config: VllmConfig) -> Any:
        return original(self, _without_mla(vllm_config))

    get_kv_cache_spec.mkv_ascend_original = original  # type: ignore[attr-defined]
    Attention.get_kv_cache_spec = get_kv_cache_spec


def _without_mla(config: VllmConfig) -> VllmConfig:
    """A view of ``config`` in which the model has no MLA: an ``Attention`` layer never has it."""
    model = config.model_config
    if model is None or not model.use_mla:
        return config
    view, dense = copy.copy(config), copy.copy(model)
    dense.__class__ = _dense(type(model))
    view.model_config = dense
    return view


def _dense(model_class: type[Any]) -> type[Any]:
    return type(f"Dense{model_class.__name__}", (model_class,), {"use_mla": False})

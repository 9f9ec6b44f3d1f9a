# SPDX-License-Identifier: Apache-2.0
"""The spec of a dense layer that is drafted with beside an MLA target.

vLLM 0.23.0's dense layer with a sliding window asks the configuration that it is given whether the
model has MLA, and refuses. The configuration is the target's, also when the layer is the draft's.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

from mkv_ascend.adapters.patching import patch

if TYPE_CHECKING:
    from vllm.config import VllmConfig


@patch(
    name="dense layers beside MLA",
    target="vllm.model_executor.layers.attention.attention:Attention.get_kv_cache_spec",
)
def spec_without_mla(original: Any, layer: Any, vllm_config: VllmConfig) -> Any:
    """``Attention.get_kv_cache_spec`` for a model without MLA."""
    return original(layer, _without_mla(vllm_config))


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

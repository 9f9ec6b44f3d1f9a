# SPDX-License-Identifier: Apache-2.0
"""What quantised layers make of their weights is made anew, where captured graphs read it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from tests.support import hosts

hosts.skip_module_unless("vllm_ascend_0_30", "vLLM 0.23.0 sends weights to targets alone")
derived_tensors: Any = hosts.module("draft_weights")


class Attention(nn.Module):
    """As vllm-ascend's with keys and values of 8 bits: it prepares its scales once, in a pass."""

    def __init__(self) -> None:
        super().__init__()
        self.k_cache_scale = nn.Parameter(torch.tensor([2.0, 4.0]), requires_grad=False)
        self.impl = SimpleNamespace(_prepare_c8_scales=self.prepare)

    def prepare(self, layer: Any, _device: Any) -> None:
        if not hasattr(layer, "_c8_scales_prepared"):
            layer._c8_k_scale = layer.k_cache_scale.view(1, 2)
            layer._c8_k_inv_scale = 1.0 / layer._c8_k_scale
            layer._c8_scales_prepared = True


def test_scales_that_a_pass_prepared_are_prepared_anew() -> None:
    layer = Attention()
    with torch.inference_mode():
        layer.prepare(layer, None)
    inverse = layer._c8_k_inv_scale
    derived = derived_tensors.DerivedTensors([layer])
    layer.k_cache_scale.data.copy_(torch.tensor([8.0, 16.0]))
    derived.refresh()
    assert layer._c8_k_inv_scale is inverse
    assert inverse.tolist() == [[0.125, 0.0625]]
    assert layer._c8_scales_prepared


def test_what_loading_makes_lies_where_it_was() -> None:
    layer = nn.Linear(2, 2)
    layer.reciprocal = before = torch.tensor([1.0, 2.0])
    derived = derived_tensors.DerivedTensors([layer])
    layer.reciprocal = torch.tensor([3.0, 4.0])
    derived.refresh()
    assert layer.reciprocal is before
    assert before.tolist() == [3.0, 4.0]
    layer.reciprocal = torch.tensor([3.0])
    with pytest.raises(ValueError, match=r"shape \(1,\); it had \(2,\).*start the engine anew"):
        derived.refresh()


def test_attention_in_another_format_is_refused() -> None:
    class Method(derived_tensors.BaseKVCacheMethod):
        def __init__(self) -> None:
            """None of vLLM's."""

    assert not derived_tensors.takes_weights_in_place(nn.Linear(1, 1))
    layer = Attention()
    layer.quant_method = Method()
    assert derived_tensors.takes_weights_in_place(layer)
    del layer.k_cache_scale
    with pytest.raises(NotImplementedError, match=r"by Method;.*in C8.*Start the engine anew"):
        derived_tensors.takes_weights_in_place(layer)

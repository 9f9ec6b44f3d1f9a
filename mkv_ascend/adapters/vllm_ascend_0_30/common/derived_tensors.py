# SPDX-License-Identifier: Apache-2.0
"""What quantised layers make of their weights and keep beside them, when these are sent anew.

vLLM copies new weights to where captured graphs read the old ones, parameters and buffers alone.
The schemes of vllm-ascend make plain tensors, too: reciprocals of the scales of inputs (``W8A8``),
and those of keys and values of 8 bits (``C8``) once, when they are used first.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import nn
from vllm.model_executor.layers.quantization.kv_cache import BaseKVCacheMethod

SCALE_OF_KEYS = "k_cache_scale"
"""The parameter of attention to keys and values in ``C8``, and of no other format."""
PREPARED = "_c8_scales_prepared"
"""What a layer has once its scales of keys and values are prepared."""


def takes_weights_in_place(layer: nn.Module) -> bool:
    """Whether a layer's weights are loaded where they lie, without vLLM's way by another device.

    The scales of ``C8`` are one number until they are loaded, and their loader gives the parameter
    other memory; vLLM counts on a parameter without memory, which takes none. Once loaded they have
    their shape, and what is sent is copied.

    Raises:
        NotImplementedError: for keys and values of another format.
    """
    method = getattr(layer, "quant_method", None)
    if not isinstance(method, BaseKVCacheMethod):
        return False
    if SCALE_OF_KEYS not in layer._parameters:
        scheme = getattr(method, "quant_method", method)
        raise NotImplementedError(
            "new weights for a draft (start_draft_weight_update) were asked for whose attention is "
            f"quantised by {type(scheme).__name__}; what it makes of its scales is not made anew. "
            "Drafts with keys and values in C8, or not quantised, take new weights. Start the "
            "engine anew with the new draft."
        )
    return True


class DerivedTensors:
    """Tensors beside the weights of some layers, as they lie now."""

    def __init__(self, layers: Iterable[nn.Module]) -> None:
        self._layers = list(layers)
        self._before = [dict(_beside(layer)) for layer in self._layers]

    @torch.inference_mode()  # As passes, which prepared some of them.
    def refresh(self) -> None:
        """Make them of the weights as they are, where they were.

        Raises:
            ValueError: one has another shape.
        """
        for layer, before in zip(self._layers, self._before, strict=True):
            _prepare_again(layer)
            for name, made in list(_beside(layer)):
                if name in before and before[name] is not made:
                    _put(made, before[name], name)
                    # The layer gets its own tensor back, which graphs read.
                    vars(layer)[name] = before[name]


def _beside(layer: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    return ((name, it) for name, it in vars(layer).items() if isinstance(it, torch.Tensor))


def _prepare_again(layer: Any) -> None:
    """Let attention to keys and values of 8 bits take the scales that the layer has now."""
    if hasattr(layer, PREPARED):
        delattr(layer, PREPARED)
        layer.impl._prepare_c8_scales(layer, layer._c8_k_scale.device)


def _put(made: torch.Tensor, where: torch.Tensor, name: str) -> None:
    if made.shape != where.shape:
        raise ValueError(
            f"a draft was sent weights of which {name} is made with shape {tuple(made.shape)}; it "
            f"had {tuple(where.shape)}, where captured graphs read it. Send weights quantised as "
            "those before, or start the engine anew with the new draft."
        )
    where.copy_(made)

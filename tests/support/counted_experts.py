# SPDX-License-Identifier: Apache-2.0
"""Counts how many tokens experts are given, beside vllm-ascend's own count of what it moves by.

Named as a worker's extension, so that it is imported before models are loaded.
"""

from __future__ import annotations

import functools
from collections import Counter
from typing import Any

import torch.distributed as dist
from vllm_ascend.eplb import eplb_updator
from vllm_ascend.eplb.adaptor.vllm_adaptor import VllmEplbAdaptor

GIVEN = "experts of layer {layer} were given {given} tokens, which are counted as {counted}"


class Extension:
    """A worker's methods: none. The module does its work when it is imported."""


given: Counter[int] = Counter()
"""Layer -> tokens that were given to its experts, each as often as it has some."""


def _count(number: int, original: Any, /, **arguments: Any) -> Any:
    """Run ``original``, a layer's experts, on the rows of all ranks."""
    chosen = arguments.get("topk_ids")
    rows = arguments["x"].shape[0]
    given[number] += rows * arguments["top_k"] if chosen is None else chosen.numel()
    return original(**arguments)


def _watch(original: Any, adaptor: Any, *arguments: Any, **named: Any) -> None:
    original(adaptor, *arguments, **named)
    for number, layer in enumerate(adaptor.moe_layers):
        method = layer.quant_method
        method.apply = functools.partial(_count, number, method.apply)


def _forget(original: Any, adaptor: Any) -> None:
    original(adaptor)
    given.clear()


def _say(original: Any, updator: Any) -> Any:
    counted = original(updator)
    if dist.get_rank() == 0:
        for layer, load in enumerate(counted):
            said = GIVEN.format(layer=layer, given=given[layer], counted=int(load.sum()))
            print(said, flush=True)
    return counted


def _wrap(owner: Any, name: str, wrapper: Any) -> None:
    original = getattr(owner, name)
    setattr(owner, name, lambda *args, **named: wrapper(original, *args, **named))


_wrap(VllmEplbAdaptor, "__init__", _watch)
_wrap(VllmEplbAdaptor, "clear_all_moe_loads", _forget)
_wrap(eplb_updator.EplbUpdator, "compute_and_set_moe_load", _say)

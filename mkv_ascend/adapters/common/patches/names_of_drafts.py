# SPDX-License-Identifier: Apache-2.0
"""The names of a draft's layers in the description of its quantised weights."""

from __future__ import annotations

from typing import Any

PREFIX = "draft_model."
"""What vLLM puts before the names of layers of a draft that is a model of its own."""


def by_name_in_checkpoint(
    original: Any, config: Any, layer: Any, prefix: str, *rest: Any, **named: Any
) -> Any:
    """``get_quant_method`` of a configuration, by the layer's name in the checkpoint.

    vllm-ascend's layers with experts give a further argument, by its name.
    """
    return original(config, layer, prefix.removeprefix(PREFIX), *rest, **named)

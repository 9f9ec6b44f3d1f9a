# SPDX-License-Identifier: Apache-2.0
"""vLLM's own grouping of layers: the question, which a process of its own answers."""

from __future__ import annotations

from collections.abc import Sequence

from mkv_ascend.commands.explain_process import ask_host
from mkv_ascend.layout.planning import CachedLayer
from mkv_ascend.layout.report import OtherGrouping
from mkv_ascend.layout.retention import Request
from mkv_ascend.layout.serialization import to_dict


def ask_vllm(
    layers: Sequence[CachedLayer], padded_bytes: int | None, request: Request
) -> OtherGrouping:
    """vLLM's own grouping of these layers, or the error that it raises.

    ``padded_bytes``: bytes that vllm-ascend pads smaller pages to; None where it pads none.
    Raises ProcessError when the process cannot run or ends without an answer.
    """
    question = {
        "layers": [
            {
                "layout": to_dict(layer.layout),
                "retention": to_dict(layer.retention),
                "padded": _padded(layer, padded_bytes),
            }
            for layer in layers
        ],
        "tokens": request.tokens,
        "tokens_per_step": request.tokens_per_step,
    }
    found = ask_host("explain.vllm_groups", question, {"VLLM_PLUGINS": "ascend"})
    return OtherGrouping(**found)


def _padded(layer: CachedLayer, padded_bytes: int | None) -> int | None:
    if padded_bytes is None or layer.layout.page_bytes >= padded_bytes:
        return None
    return padded_bytes

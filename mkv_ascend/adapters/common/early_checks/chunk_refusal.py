# SPDX-License-Identifier: Apache-2.0
"""Attention in chunks (Llama 4), refused in the process that the user started.

vLLM's metadata builder for chunks makes metadata anew, without what vllm-ascend's reads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mkv_ascend import host_versions
from mkv_ascend.attention.selection import SelectionError
from mkv_ascend.layout.kind import Kind

if TYPE_CHECKING:
    from vllm.config import ModelConfig


def refuse_chunks(model: ModelConfig) -> None:
    """Refuse a model whose layers attend in chunks.

    Raises:
        SelectionError: it has such layers.
    """
    chunk = model.attention_chunk_size
    if chunk is not None:
        raise SelectionError(
            f"layers of {model.model} attend in chunks of {chunk} tokens ({Kind.CHUNKED_LOCAL}), "
            f"which no backend of {host_versions.vllm_ascend()} serves: its backends attend to all "
            "tokens or to a sliding window. Choose a model without attention_chunk_size in its "
            "configuration"
        )

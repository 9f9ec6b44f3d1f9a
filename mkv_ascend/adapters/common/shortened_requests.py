# SPDX-License-Identifier: Apache-2.0
"""Longest requests that vLLM shortens to memory (``--max-model-len auto``), told to the draft."""

from __future__ import annotations

from typing import Any


def tell(proposer: Any, max_model_len: int) -> None:
    """Let ``proposer`` draft up to ``max_model_len`` tokens of a sequence; None drafts nothing.

    vLLM tells its runner alone, whose block tables end there: a draft that goes on as far as its
    model can would read blocks behind the table.
    """
    if hasattr(proposer, "max_model_len"):
        proposer.max_model_len = max_model_len

# SPDX-License-Identifier: Apache-2.0
"""Role and kind of a layer: the two words everything else is keyed by."""

from __future__ import annotations

from enum import Enum


class Word(str, Enum):
    """A string enum that prints as its value on every Python (StrEnum needs 3.11)."""

    def __str__(self) -> str:
        return str(self.value)


class Role(Word):
    """Which model a layer belongs to."""

    TARGET = "target"
    DRAFT = "draft"


class Kind(Word):
    """What a layer keeps in its cache."""

    FULL_ATTENTION = "full_attention"
    """Keys and values of every token."""
    SLIDING_WINDOW = "sliding_window"
    """Keys and values of the last tokens of a window."""
    CHUNKED_LOCAL = "chunked_local"
    """Keys and values of the tokens of one chunk."""
    MLA = "mla"
    """One latent vector and one rope key per token (multi-head latent attention)."""
    SPARSE_MLA = "sparse_mla"
    """MLA with an indexer that picks the tokens to attend to (DeepSeek sparse attention)."""
    COMPRESSED_MLA = "compressed_mla"
    """MLA over compressed tokens, with a window and an indexer (DeepSeek-V4)."""
    MAMBA = "mamba"
    """A state of fixed size: convolution and state space, gated delta net, short convolution."""
    HIDDEN_STATE = "hidden_state"
    """Hidden states that another model reads."""
    CROSS_ATTENTION = "cross_attention"
    """Keys and values of the encoder's tokens."""

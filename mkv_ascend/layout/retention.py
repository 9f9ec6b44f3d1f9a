# SPDX-License-Identifier: Apache-2.0
"""How many blocks one request holds in a layer, which decides who may share a block table.

Two layers can share a block table exactly when they hold the same blocks at every moment. That is
so when their ``Retention`` and their block size are equal. The formulas are those by which vLLM
admits requests (``vllm/v1/kv_cache_interface.py``, ``max_memory_usage_bytes`` of each spec), so
that a plan counts what the scheduler will take.
"""

from __future__ import annotations

from dataclasses import dataclass

from mkv_ascend.layout.kind import Word


class RetentionKind(Word):
    """Which tokens of a request a layer keeps."""

    ALL = "all"
    """Every token, from the first to the last."""
    WINDOW = "window"
    """The last ``extent`` tokens; blocks that fall out of the window are given back."""
    CHUNK = "chunk"
    """The tokens of the current chunk of ``extent`` tokens."""
    STATE = "state"
    """No tokens: ``extent`` blocks with one state each, whatever the length."""
    ENCODER = "encoder"
    """The ``extent`` tokens of the encoder."""


@dataclass(frozen=True)
class Request:
    """The request that a plan is measured with.

    ``tokens``: its length. ``tokens_per_step``: how many of them one step may add while the tokens
    before are still held (1 + K with K draft tokens in decode; the scheduler's
    ``max_num_batched_tokens`` at admission).
    """

    tokens: int
    tokens_per_step: int = 1

    def __post_init__(self) -> None:
        if self.tokens < 1 or self.tokens_per_step < 1:
            raise ValueError(
                f"a request of {self.tokens} tokens with {self.tokens_per_step} tokens per step "
                "cannot be planned for: both must be at least 1"
            )


@dataclass(frozen=True)
class Retention:
    """What one request holds in a layer; layers with equal retentions can share a block table.

    ``extent``: tokens of the window, chunk or encoder, or number of states; 0 for ``ALL``.
    ``tokens_per_row``: tokens that one row of the cache stands for (DeepSeek-V4's compression).
    ``extra_blocks``: blocks beyond those for the tokens (states of speculative tokens).
    ``asked_blocks``: that must be free beside these in each step, though they are never taken.
    """

    kind: RetentionKind
    extent: int = 0
    tokens_per_row: int = 1
    extra_blocks: int = 0
    asked_blocks: int = 0

    def __post_init__(self) -> None:
        if (self.kind is RetentionKind.ALL) != (self.extent == 0) or self.extent < 0:
            raise ValueError(
                f"extent is {self.extent} with kind {self.kind}; kind all takes 0, every other "
                "kind a positive number of tokens or states"
            )
        if self.tokens_per_row < 1 or self.extra_blocks < 0:
            raise ValueError(
                f"tokens_per_row is {self.tokens_per_row} and extra_blocks is {self.extra_blocks}; "
                "allowed: at least 1, and at least 0"
            )

    def tokens_of_block(self, block_size: int) -> int:
        """Tokens that one block of ``block_size`` rows stands for."""
        return block_size * self.tokens_per_row

    def blocks(self, block_size: int, request: Request) -> int:
        """Most blocks of ``block_size`` rows that ``request`` holds at one time."""
        tokens_per_block = self.tokens_of_block(block_size)
        if self.kind is RetentionKind.STATE:
            return self.extent + self.extra_blocks
        if self.kind is RetentionKind.ENCODER:
            return -(-self.extent // tokens_per_block) + self.extra_blocks
        if self.kind is RetentionKind.ALL:
            return -(-request.tokens // tokens_per_block) + self.extra_blocks
        if self.kind is RetentionKind.CHUNK:
            held = min(self.extent + request.tokens_per_step, request.tokens)
            return -(-held // tokens_per_block) + self.extra_blocks
        held = min(self.extent - 1 + request.tokens_per_step, request.tokens)
        # One more: the window need not start at the beginning of a block.
        return -(-held // tokens_per_block) + 1 + self.extra_blocks

# SPDX-License-Identifier: Apache-2.0
"""The caches of DeepSeek-V4's layers, from its config.json.

A decoder layer keeps a window of latents; with compression also compressed latents and the state of
its compressor; at a ratio of 4 an indexer's keys and the state of the indexer's own compressor. As
vllm-ascend 0.23.0 builds them on Ascend A2 and A3: ``vllm_ascend/models/deepseek_v4.py``, sizes of
blocks and pages ``vllm_ascend/models/layer/attention/layer.py``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

__all__ = ["BLOCKS", "RATIOS", "CompressedCache", "CompressedNumbers", "caches_of_layer"]

BLOCKS = (128, 64, 32)
"""Tokens of a block that vllm-ascend has sizes for."""
DEFAULT_BLOCK = 32
"""Tokens where none of these are asked for (``vllm_ascend.utils.refresh_block_size``)."""
RATIOS = (4, 128)
"""Tokens that one compressed key stands for."""
STATE_ROWS = {4: 16, 128: 4}
"""Ratio -> how many times fewer rows a block of its compressor's states has."""
SCALE_BYTES = 2
"""Of each key of the indexer, in float16."""
STATE_DTYPE = "float32"


@dataclass(frozen=True)
class CompressedNumbers:
    """``latent``: elements of a key; ``indexer``: of a key of the indexer; ``window``: tokens."""

    latent: int
    indexer: int
    window: int


@dataclass(frozen=True)
class CompressedCache:
    """One cache of a layer.

    ``parts``: name, dtype (None for the model's) and elements of a row. ``tokens_per_row``: tokens
    that a row stands for. ``fewer_rows``: by how much its blocks are smaller than the manager's.
    ``page_bytes``: of its page, for each token of the manager's block.
    """

    module: str
    parts: tuple[tuple[str, str | None, int], ...]
    page_bytes: int
    window: int = 0
    tokens_per_row: int = 1
    fewer_rows: int = 1


def caches_of_layer(numbers: CompressedNumbers, ratio: int) -> Iterator[CompressedCache]:
    """The caches of one decoder layer, in the order in which vllm-ascend makes them."""
    # Pages are of two sizes: the indexer's, and all others'.
    wide, narrow = 2 * numbers.latent, numbers.indexer + SCALE_BYTES
    if ratio in RATIOS:
        yield _state("compressor", numbers.latent, ratio, wide)
    if ratio == RATIOS[0]:
        keys = (("indexer_k", "int8", numbers.indexer), ("indexer_scale", "float16", 1))
        yield CompressedCache("indexer.k_cache", keys, narrow, tokens_per_row=ratio)
        yield _state("indexer.compressor", numbers.indexer, ratio, narrow)
    latent = (("latent", None, numbers.latent),)
    yield CompressedCache("swa_cache", latent, wide, numbers.window)
    if ratio in RATIOS:
        yield CompressedCache("attn", latent, wide, tokens_per_row=ratio)


def _state(module: str, width: int, ratio: int, page_bytes: int) -> CompressedCache:
    """Sums and weights of the keys that are not compressed yet; at 4 windows overlap by half."""
    overlapping = 2 if ratio == RATIOS[0] else 1
    return CompressedCache(
        f"{module}.state_cache",
        (("compressor_state", STATE_DTYPE, 2 * overlapping * width),),
        page_bytes,
        overlapping * ratio,
        fewer_rows=STATE_ROWS[ratio],
    )

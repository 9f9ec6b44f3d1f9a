# SPDX-License-Identifier: Apache-2.0
"""Pairs of models, and the figures of KV memory that they are held to.

The figures were measured before mkv_ascend had a grouping: MiB that one request of 32768 tokens
holds in decode, bfloat16, one rank, blocks of 128 tokens (1024 with a Qwen3-Next target).
"""

from __future__ import annotations

from dataclasses import dataclass

from mkv_ascend.layout.requirements import Request

REQUEST = Request(tokens=32768, tokens_per_step=4)
"""The request of every figure; a step adds one token and three draft tokens."""


MEMORY_GIB = 64
"""Memory for KV caches, where requests at once are counted."""


def whole_mib(num_bytes: int) -> int:
    """Whole MiB, rounded as the figures below are: a half goes to the even neighbour."""
    return round(num_bytes / 2**20)


@dataclass(frozen=True)
class Figure:
    """KV groups, and MiB held by the request."""

    groups: int
    mib: int


@dataclass(frozen=True)
class Row:
    """``stock``: vLLM 0.23.0 as it was, None where it raises. ``contiguous``: draft layers merged
    into the target's groups, a slot for each page size. ``strided``: the same where groups may
    alias from the first byte of a block. ``ideal_mib``: no padding at all."""

    name: str
    target: str
    draft: str
    stock: Figure | None
    contiguous: Figure
    strided: Figure
    ideal_mib: int

    @property
    def goal(self) -> Figure:
        """No more groups than the first, and no more MiB than the second."""
        stock_mib = self.stock.mib if self.stock else self.contiguous.mib
        return Figure(self.contiguous.groups, min(stock_mib, self.contiguous.mib))


def _row(
    name: str,
    models: tuple[str, str],
    stock: tuple[int, int] | None,
    contiguous: tuple[int, int],
    strided: tuple[int, int],
    ideal_mib: int,
) -> Row:
    figure = Figure(*stock) if stock else None
    return Row(name, *models, figure, Figure(*contiguous), Figure(*strided), ideal_mib)


def _alike(name: str, models: tuple[str, str], figure: tuple[int, int], ideal_mib: int) -> Row:
    return _row(name, models, figure, figure, figure, ideal_mib)


LLAMA = "Llama-3.1-8B"
DEEPSEEK = "DeepSeek-V3"
QWEN = "Qwen3-Next-80B-A3B"

ROWS = (
    _row("Llama-8B + gemma3-1b", (LLAMA, "gemma-3-1b"), (15, 4260), (3, 4656), (2, 4323), 4240),
    _row("gemma3-27b + 1b", ("gemma-3-27b", "gemma-3-1b"), (23, 3768), (11, 3655), (8, 3381), 3224),
    _row("gemma3-4b + 270m", ("gemma-3-4b", "gemma-3-270m"), (18, 1036), (12, 995), (8, 926), 892),
    _row(
        "gpt-oss-20b + eagle 8x128",
        ("gpt-oss-20b", "eagle3-8x128"),
        (25, 908),
        (2, 906),
        (2, 906),
        905,
    ),
    _row("DSV3 + 3 SWA", (DEEPSEEK, "window-draft-8x64"), None, (4, 2340), (2, 2222), 2198),
    _row("DSV3 + gpt-oss-20b", (DEEPSEEK, "gpt-oss-20b"), None, (2, 2999), (2, 2999), 2973),
    _row("Q3N + eagle3 4x128", (QWEN, "eagle3-4x128"), (49, 925), (4, 931), (4, 931), 870),
    _row("Q3N + eagle3 2x128", (QWEN, "eagle3-2x128"), (49, 925), (4, 931), (4, 931), 838),
    _row("Q3N + eagle3 8x128", (QWEN, "eagle3-8x128"), None, (4, 1000), (4, 1000), 934),
    _row("Q3N + Qwen3-0.6B", (QWEN, "Qwen3-0.6B"), None, (4, 4780), (4, 4780), 4390),
    _row("Q3N + gemma3-1b", (QWEN, "gemma-3-1b"), (19, 1220), (6, 1277), (6, 1277), 978),
    _row("Llama-8B + LFM2-350M", (LLAMA, "LFM2-350M"), None, (2, 4508), (2, 4498), 4480),
    _row("MLA27 + LFM2-350M", ("DeepSeek-V2-Lite", "LFM2-350M"), None, (2, 1371), (2, 1361), 1356),
    _alike("gemma3-1b + 270m", ("gemma-3-1b", "gemma-3-270m"), (7, 256), 252),
    _alike("gpt-oss-120b + 20b", ("gpt-oss-120b", "gpt-oss-20b"), (2, 1942), 1942),
    _alike("gpt-oss-20b + eagle 8x64", ("gpt-oss-20b", "eagle3-8x64"), (2, 842), 841),
    _alike("DSV3 + GQA eagle3", (DEEPSEEK, "eagle3-8x128"), (1, 2324), 2324),
    _alike("Q3N + MTP", (QWEN, "Qwen3-Next-80B-A3B-mtp"), (4, 931), 870),
    _alike("LFM2-1.2B + LFM2-350M", ("LFM2-1.2B", "LFM2-350M"), (3, 774), 768),
)

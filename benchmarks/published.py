# SPDX-License-Identifier: Apache-2.0
"""Published models as layers that keep a cache, from the numbers in ``benchmarks/configs``.

Each file there has what sizes a cache and nothing else, written from the model's public
``config.json``, whose address it names: kinds of layer, and a pattern with a letter for each layer
that keeps one, repeated to the number of ``layers``. bfloat16; block and page sizes as vllm-ascend
0.23.0 sets them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from mkv_ascend.layout.kind import Kind, Role
from mkv_ascend.layout.requirements import (
    LayerRequirements,
    Request,
    Retention,
    RetentionKind,
    block_size_choices,
)

CONFIGS = Path(__file__).resolve().parent / "configs"
ITEM_BYTES = 2
KERNEL_BLOCK = 128
DEEPSEEK_V4_PAGES = (16_640, 131_072)
"""Bytes that pages of DeepSeek-V4 are padded to: indexer, everything else. Its compressors' states
have blocks of 8 tokens (ratio 4) and 32 (``vllm_ascend/models/layer/attention/layer.py``)."""

Facts = Mapping[str, Any]


class NotServedError(ValueError):
    """A number of ranks that a model cannot be divided by."""


@dataclass(frozen=True)
class _Reader:
    """``ranks``: of tensor parallelism. ``draft_tokens``: that a state must allow for."""

    ranks: int
    draft_tokens: int

    def divided(self, number: int) -> int:
        if number % self.ranks:
            raise NotServedError(f"{number} cannot be divided by {self.ranks} ranks")
        return number // self.ranks

    def heads(self, number: int) -> int:
        """With more ranks than heads each rank has one."""
        return 1 if number < self.ranks and self.ranks % number == 0 else self.divided(number)


def _attention(
    reader: _Reader, facts: Facts, kind: Kind, retention: Retention
) -> list[LayerRequirements]:
    heads = reader.heads(facts["kv_heads"])
    dims = (facts["head_dim"], facts.get("value_dim", facts["head_dim"]))
    return [_tokens(kind, retention, tuple(heads * dim for dim in dims))]


def _tokens(kind: Kind, retention: Retention, elements: tuple[int, ...]) -> LayerRequirements:
    rows = tuple(count * ITEM_BYTES for count in elements)
    return LayerRequirements(
        "", Role.TARGET, kind, retention, (KERNEL_BLOCK,), rows, kernel_block=KERNEL_BLOCK
    )


def _full(reader: _Reader, facts: Facts) -> list[LayerRequirements]:
    return _attention(reader, facts, Kind.FULL_ATTENTION, Retention(RetentionKind.ALL))


def _window(reader: _Reader, facts: Facts) -> list[LayerRequirements]:
    retention = Retention(RetentionKind.WINDOW, facts["window"])
    return _attention(reader, facts, Kind.SLIDING_WINDOW, retention)


def _chunk(reader: _Reader, facts: Facts) -> list[LayerRequirements]:
    return _attention(
        reader, facts, Kind.CHUNKED_LOCAL, Retention(RetentionKind.CHUNK, facts["chunk"])
    )


def _mla(_: _Reader, facts: Facts) -> list[LayerRequirements]:
    return [_tokens(Kind.MLA, Retention(RetentionKind.ALL), (facts["latent"], facts["rope"]))]


def _sparse(_: _Reader, facts: Facts) -> list[LayerRequirements]:
    parts = (facts["latent"], facts["rope"], facts["indexer"])
    return [_tokens(Kind.SPARSE_MLA, Retention(RetentionKind.ALL), parts)]


def _states(reader: _Reader, *shapes: tuple[tuple[int, ...], int]) -> list[LayerRequirements]:
    """A layer with these states (shape, bytes of an element), and one more of them per token."""
    return [
        LayerRequirements(
            "",
            Role.TARGET,
            Kind.MAMBA,
            Retention(RetentionKind.STATE, 1, extra_blocks=reader.draft_tokens),
            (KERNEL_BLOCK,),
            state_bytes=tuple(math.prod(shape) * item for shape, item in shapes),
            # vLLM knows a group of states by its one spec.
            table=str(shapes),
        )
    ]


def _delta_net(reader: _Reader, facts: Facts) -> list[LayerRequirements]:
    """vLLM, ``MambaStateShapeCalculator.gated_delta_net_state_shape``."""
    channels = 2 * facts["key_heads"] * facts["key_dim"] + facts["value_heads"] * facts["value_dim"]
    conv = (facts["conv"] - 1 + reader.draft_tokens, reader.divided(channels))
    state = (reader.divided(facts["value_heads"]), facts["value_dim"], facts["key_dim"])
    return _states(reader, (conv, ITEM_BYTES), (state, ITEM_BYTES))


def _kimi(reader: _Reader, facts: Facts) -> list[LayerRequirements]:
    """vLLM, ``MambaStateShapeCalculator.kda_state_shape``; its recurrent state is float32."""
    heads, dim = reader.divided(facts["heads"]), facts["head_dim"]
    conv = (facts["conv"] - 1, 3 * heads * dim)
    return _states(reader, (conv, ITEM_BYTES), ((heads, dim, dim), 4))


def _mamba(reader: _Reader, facts: Facts) -> list[LayerRequirements]:
    """vLLM, ``MambaStateShapeCalculator.mamba2_state_shape``."""
    groups = facts["groups"]
    if groups % reader.ranks:
        groups = reader.ranks
    channels = facts["heads"] * facts["head_dim"] + 2 * groups * facts["state"]
    conv = (facts["conv"] - 1 + reader.draft_tokens, reader.divided(channels))
    state = (reader.divided(facts["heads"]), facts["head_dim"], facts["state"])
    return _states(reader, (conv, ITEM_BYTES), (state, facts["state_item_bytes"]))


def _short_convolution(reader: _Reader, facts: Facts) -> list[LayerRequirements]:
    width = facts["conv"] - 1 + reader.draft_tokens
    return _states(reader, ((width, reader.divided(facts["channels"])), ITEM_BYTES))


def _deepseek_v4(_: _Reader, facts: Facts) -> list[LayerRequirements]:
    """A window of latents; with compression compressed latents and a state; an indexer at ratio 4.

    vllm_ascend/models/deepseek_v4.py.
    """
    ratio, (small, large) = facts["ratio"], DEEPSEEK_V4_PAGES
    window = Retention(RetentionKind.WINDOW, facts["window"])
    layers = [_page(window, 128, 2 * facts["latent"], large)]
    if not ratio:
        return layers
    kept = Retention(RetentionKind.ALL, tokens_per_row=ratio)
    state, rows = (Retention(RetentionKind.WINDOW, 8), 8) if ratio == 4 else (window, 32)
    layers += [_page(kept, 128, 2 * facts["latent"], large), _page(state, rows, 0, large)]
    if ratio == 4:
        # One byte a number, and a scale of two for each key.
        layers += [_page(kept, 128, facts["indexer"] + 2, small), _page(state, rows, 0, small)]
    return layers


def _page(retention: Retention, rows: int, row_bytes: int, page_bytes: int) -> LayerRequirements:
    padding = page_bytes - rows * row_bytes
    return LayerRequirements(
        "",
        Role.TARGET,
        Kind.COMPRESSED_MLA,
        retention,
        (rows,),
        (row_bytes,) if row_bytes else (),
        (padding,) if padding else (),
        takes_strides=True,
    )


KINDS: dict[str, Callable[[_Reader, Facts], list[LayerRequirements]]] = {
    "full_attention": _full,
    "sliding_window": _window,
    "chunked_local": _chunk,
    "mla": _mla,
    "sparse_mla": _sparse,
    "gated_delta_net": _delta_net,
    "kimi_delta_attention": _kimi,
    "mamba2": _mamba,
    "short_convolution": _short_convolution,
    "deepseek_v4": _deepseek_v4,
}


@cache
def read_facts(name: str) -> Facts:
    """What the file of model ``name`` says."""
    facts: Facts = json.loads((CONFIGS / f"{name}.json").read_text())
    return facts


def published_names() -> list[str]:
    """Every model that there is a file of."""
    return sorted(path.stem for path in CONFIGS.glob("*.json"))


def layers_of(
    name: str, role: Role, ranks: int = 1, draft_tokens: int = 0
) -> list[LayerRequirements]:
    """The caches of model ``name`` on one rank, in the order of execution."""
    facts, reader = read_facts(name), _Reader(ranks, draft_tokens)
    pattern, kinds = facts["pattern"], facts["kinds"]
    parts = {letter: KINDS[kind["kind"]](reader, kind) for letter, kind in kinds.items()}
    prefix = "draft_model." if role is Role.DRAFT else ""
    return [
        replace(part, name=f"{prefix}model.layers.{index}.{number}", role=role)
        for index in range(facts["layers"])
        for number, part in enumerate(parts[pattern[index % len(pattern)]])
    ]


def pair_needs(
    target: str, draft: str, request: Request, ranks: int = 1
) -> list[LayerRequirements]:
    """Target and draft as grouping takes them; NotServedError where ``ranks`` do not divide one.

    Where the target has recurrent states, the attention block is made so large that its keys are as
    many bytes as one of them (vllm_ascend/patch/platform/patch_mamba_config.py).
    """
    tokens = request.tokens_per_step - 1
    layers = layers_of(target, Role.TARGET, ranks, tokens)
    block = _block_size(layers)
    layers += layers_of(draft, Role.DRAFT, ranks, tokens)
    own = [KERNEL_BLOCK if need.kernel_block is None else block for need in layers]
    largest = math.lcm(*own)
    return [
        replace(need, block_sizes=block_size_choices(block, KERNEL_BLOCK, largest))
        if need.kernel_block
        else need
        for need in layers
    ]


def _block_size(target: list[LayerRequirements]) -> int:
    states = [
        max(need.state_bytes) for need in target if need.retention.kind is RetentionKind.STATE
    ]
    keys = [max(need.row_bytes) for need in target if need.kernel_block]
    if not states or not keys or all(len(need.state_bytes) == 1 for need in target):
        return KERNEL_BLOCK
    return KERNEL_BLOCK * max(1, -(-max(states) // (KERNEL_BLOCK * keys[0])))

# SPDX-License-Identifier: Apache-2.0
"""Random layouts of caches through the planner: no two blocks share a byte, by writing all down.

Each number draws one to three KV groups of one to three layers each: components of any size, kept
by tokens or as states, in each kind of storage; and how many blocks of each group lie in a page.
The plan that is made of them is bound to a few pages, and every byte that a view of a layer reaches
in a block is noted. A byte of two pages, of two places of one group, or outside the buffer is a
fault.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

from mkv_ascend.layout.component import (
    ONE_BLOCK,
    Component,
    LayerLayout,
    PageShape,
    StateExtent,
    Storage,
    TokenExtent,
)
from mkv_ascend.layout.kind import Kind, Role
from mkv_ascend.layout.plan import CachePlan, TensorView, make_plan
from mkv_ascend.layout.pooling import page_bytes

MOST_PAGES = 4
SAVED_EVERY = 1000
Groups = list[list[LayerLayout]]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the options of the command on ``parser``."""
    parser.add_argument("--count", type=int, default=10_000, help="how many (10000)")
    parser.add_argument("--seed", type=int, default=1, help="what they are drawn with (1)")
    parser.add_argument("--keep", type=Path, metavar="FILE", help="note progress there, and go on")


def run(asked: argparse.Namespace) -> int:
    """Judge them; returns the exit status."""
    found = _kept(asked)
    began = time.monotonic()
    for number in range(found["next"], asked.count):
        if fault := fault_of(asked.seed, number):
            found["faults"].append({"number": number, "fault": fault})
            print(f"{number}: {fault}", file=sys.stderr)
        found["next"] = number + 1
        if found["next"] % SAVED_EVERY == 0 or found["next"] == asked.count:
            _keep(asked.keep, found)
            said = f"{found['next']} of {asked.count} plans, {len(found['faults'])} faults"
            print(
                f"\r{said}, {time.monotonic() - began:.0f} s", end="", file=sys.stderr, flush=True
            )
    print(file=sys.stderr)
    if asked.json:
        print(json.dumps(found, indent=1))
    return 1 if found["faults"] else 0


def fault_of(seed: int, number: int) -> str:
    """What is wrong with the plan of this number; empty if nothing is."""
    chance = random.Random(f"{seed} {number}")
    groups = draw(chance)
    shapes = [_shape(chance, group) for group in groups]
    plan = make_plan(groups, shapes=shapes)
    if plan.bytes_per_block != page_bytes(groups, shapes):
        return f"{plan.bytes_per_block} bytes per page, not {page_bytes(groups, shapes)}"
    return shared_byte(plan, chance.randint(1, MOST_PAGES))


def shared_byte(plan: CachePlan, pages: int) -> str:
    """The first byte that two have which must not, among so many pages; empty if none is."""
    bound = plan.bind(pages)
    # By buffer: the page of each byte. By KV group and buffer: the bytes of that group.
    page_of: dict[int, dict[int, int]] = defaultdict(dict)
    seen: dict[tuple[int, int], set[int]] = defaultdict(set)
    for name, layer in bound.views().items():
        group = plan.group_of[name]
        shape = plan.shapes[group]
        for view, block in product(layer.views, range(pages * shape.blocks)):
            page = block // shape.per_stretch % pages
            buffer, size = view.buffer, bound.buffers[view.buffer]
            of_pages, own = page_of[buffer], seen[group, buffer]
            for byte in _bytes_of(view, block):
                if not 0 <= byte < size:
                    return f"{name} leaves buffer {buffer} in block {block} by byte {byte}"
                if (other := of_pages.setdefault(byte, page)) != page:
                    return f"{name} has byte {(buffer, byte)} of page {other} in page {page}"
                if byte in own:
                    return f"{name} has byte {(buffer, byte)} of its own KV group"
                own.add(byte)
    return ""


def _bytes_of(view: TensorView, block: int) -> Iterator[int]:
    """Where each element of a block of this view lies; elements have one byte."""
    row_stride, *strides = view.strides
    inner = [
        sum(index * stride for index, stride in zip(indices, strides, strict=True))
        for indices in product(*map(range, view.shape[1:]))
    ]
    for row in range(block * view.rows_per_block, (block + 1) * view.rows_per_block):
        begin = view.offset_bytes + row * row_stride
        for offset in inner:
            yield begin + offset


def draw(chance: random.Random) -> Groups:
    """One to three KV groups; the layers of each can share a block table."""
    groups = []
    for group in range(chance.randint(1, 3)):
        layers = [_layout(chance, f"{group}.{index}") for index in range(chance.randint(1, 3))]
        groups.append([*_of_one_table(layers)])
    return groups


def _shape(chance: random.Random, group: list[LayerLayout]) -> PageShape:
    """Blocks in a page: one, or some of stretches of some; packed pages share one row."""
    if chance.random() < 0.5:
        return ONE_BLOCK
    is_packed = any(layer.storage is Storage.PACKED for layer in group)
    return PageShape(chance.randint(1, 3), 1 if is_packed else chance.randint(1, 3))


def _layout(chance: random.Random, name: str) -> LayerLayout:
    """A layer of int8 whose block has two tokens, or two kernel blocks of one."""
    storage = chance.choice([*Storage])
    splits = chance.randint(1, 2)
    parts = []
    for index in range(chance.randint(1, 3)):
        extent: TokenExtent | StateExtent
        extent = TokenExtent(2, chance.randint(1, 3), chance.randint(1, 3))
        if splits == 1 and chance.random() < 0.5:
            extent = StateExtent((chance.randint(1, 3), chance.randint(1, 3)))
        replicas = 1 if storage.is_strided else chance.randint(1, 2)
        parts.append(Component(f"part_{index}", "int8", extent, replicas))
    used = sum(part.bytes_per_block for part in parts)
    padding = 2 * chance.randint(1, 3) if storage is Storage.PAGED else 0
    kernel_block = 1 if splits == 2 else None
    return LayerLayout(
        name, Role.TARGET, Kind.MAMBA, tuple(parts), storage, used + padding, 2, kernel_block
    )


def _of_one_table(layers: list[LayerLayout]) -> Iterator[LayerLayout]:
    """Those that split blocks as the first does, and packed ones alike."""
    first = layers[0].kernel_block
    alike = [one for one in layers if one.kernel_block in (None, first or one.kernel_block)]
    packed = [one for one in alike if one.storage is Storage.PACKED]
    for one in alike:
        if one not in packed or one.kernel_splits == packed[0].kernel_splits:
            yield one


def _kept(asked: argparse.Namespace) -> dict[str, Any]:
    if asked.keep is None or not asked.keep.exists():
        return {"seed": asked.seed, "next": 0, "faults": []}
    kept: dict[str, Any] = json.loads(asked.keep.read_text(encoding="utf-8"))
    if kept["seed"] != asked.seed:
        raise SystemExit(
            f"reliability: {asked.keep} holds plans of seed {kept['seed']}, asked for was "
            f"{asked.seed}. Name another file, or remove this one."
        )
    return kept


def _keep(file: Path | None, found: dict[str, Any]) -> None:
    if file is not None:
        file.write_text(json.dumps(found, indent=1), encoding="utf-8")

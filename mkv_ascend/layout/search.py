# SPDX-License-Identifier: Apache-2.0
"""The search for KV groups: the least memory for every number of groups, and its proof.

A block id means the same block in every pool, and one group owns it in all of them. So a request
holds (bytes of one block over all pools) x (blocks of all groups). The search minimises that
product.

Contiguous components cannot be padded, because the operators take no strides. So two components can
share a plane of the pool only if they have equally many bytes per block. For every size of
component, a block then costs that size times the largest number of such components in any one
group. Layers whose operators take strides have one plane for a whole page.

The choices (``search_options``): which types of layer that may share a block table go together, the
block size of each such bundle, and into how many groups it is split. Layers of one type are alike,
so they get blocks of one size.

The search is branch and bound, on integers only and in a fixed order, so the same layers always
give the same answer. At every node it asks the remaining bundles for the fewest blocks that they
need if a block has at most b bytes. For each b, these bytes and these fewest blocks bound what the
node can lead to. The same choices, put together, are an answer, so good answers come before the
first branch. If the search is cut short, the part it has not seen is bounded in the same way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from mkv_ascend.layout.retention import Request
from mkv_ascend.layout.search_options import (
    Bundle,
    Choices,
    Integers,
    LayerType,
    Level,
    most_bytes,
)

NODE_LIMIT = 1_500
"""Nodes looked at before the search stops with the best so far: about 300 ms."""
LARGEST_COST = 2**63
"""Costs are 64-bit integers."""
PARTITION_LIMIT = 256
"""Ways to put types into bundles that are looked at; the rest is bounded all at once."""
PAIRS_AT_ONCE = 40_000
"""Combinations of the last two bundles that are computed in one go."""


@dataclass(frozen=True)
class Candidate:
    """One complete grouping: its bundles and what it costs."""

    bundles: tuple[Bundle, ...]
    groups: int
    held_bytes: int
    block_bytes: int
    blocks: int


@dataclass(frozen=True)
class Frontier:
    """For every number of groups worth having, the grouping with the least memory.

    ``candidates``: more groups and fewer bytes from one to the next. ``exhaustive``: whether the
    search looked at every choice before it reached its limit. ``bounds``: (groups, bytes) pairs;
    no grouping has fewer bytes than the least pair with as many groups or fewer, and none fewer
    than its layers need by themselves. ``nodes``: how
    many were looked at.
    """

    candidates: tuple[Candidate, ...]
    exhaustive: bool
    bounds: tuple[tuple[int, int], ...] = ()
    nodes: int = 0

    def bound_bytes(self, groups: int | None = None) -> int:
        """The fewest bytes that any grouping with at most ``groups`` groups could hold.

        None for any number. 0 where no grouping has so few.
        """
        found = [held for count, held in self.bounds if groups is None or count <= groups]
        return min(found, default=0)


def search(
    types: Sequence[LayerType],
    request: Request,
    node_limit: int = NODE_LIMIT,
) -> Frontier:
    """The frontier of groupings for ``types``, measured with ``request``.

    ``node_limit``: nodes after which the search stops with what it has. Raises ValueError if a type
    has no layers, or the request is too large to be counted.
    """
    if any(layer_type.count < 1 for layer_type in types):
        raise ValueError("a layer type without layers cannot be grouped; leave it out")
    if not types:
        return Frontier((), exhaustive=True)
    return _Search(Choices(types, request), node_limit).run()


@dataclass(frozen=True)
class _Node:
    """A partial grouping. ``planes`` and ``assigned`` as in ``Level``.

    ``chosen``: (level, option) pairs. ``left``: levels that are not decided, one at least.
    """

    chosen: tuple[tuple[Level, int], ...]
    left: tuple[Level, ...]
    planes: Integers
    assigned: Integers
    blocks: int = 0
    groups: int = 0
    moved: int = 0


@dataclass(frozen=True)
class _Curve:
    """What a node can lead to when a block has no more bytes than each value of ``block_bytes``.

    ``needed``: for each level that is left, the bytes that each option needs by itself. ``best``:
    for each level, the option with the fewest blocks. ``blocks`` and ``groups``: the fewest of all
    levels together.
    """

    block_bytes: Integers
    needed: tuple[Integers, ...]
    best: tuple[Integers, ...]
    blocks: Integers
    groups: Integers


@dataclass
class _Search:
    choices: Choices
    node_limit: int
    nodes: int = 0
    open: list[tuple[int, int]] = field(default_factory=list)
    exhaustive: bool = True

    def __post_init__(self) -> None:
        types = self.choices.types
        # Of equal groupings the one that leaves more layers at their own block size is better.
        self.scale = 1 + len(types) * (1 + len(self.choices.size_ranks))
        if most_bytes(types, self.choices.request) * self.scale >= LARGEST_COST:
            raise ValueError(
                f"KV caches for a request of {self.choices.request.tokens} tokens are too large to "
                "be planned; lower max_model_len"
            )
        most = sum(layer_type.count for layer_type in types)
        unknown = np.iinfo(np.int64).max
        # Cost (bytes x scale + moved) of the best grouping with at most so many groups.
        self.known: Integers = np.full(most + 1, unknown, dtype=np.int64)
        self.best: dict[int, tuple[int, Candidate]] = {}

    def run(self) -> Frontier:
        roots = []
        for count, levels in enumerate(self.choices.partitions()):
            if count == PARTITION_LIMIT:
                self.leave(self.root(self.choices.heaviest()))
                break
            roots.append(self.root(levels))
        curves = [self.enter(root) for root in roots]
        lowest = [int(self.costs(r, c).min()) for r, c in zip(roots, curves, strict=True)]
        for index in sorted(range(len(roots)), key=lambda index: (lowest[index], index)):
            self.descend(roots[index], curves[index])
        return self.frontier()

    def frontier(self) -> Frontier:
        candidates: list[Candidate] = []
        for groups in sorted(self.best):
            candidate = self.best[groups][1]
            if not candidates or candidate.held_bytes < candidates[-1].held_bytes:
                candidates.append(candidate)
        proven = [(candidate.groups, candidate.held_bytes) for candidate in candidates]
        needed = self.choices.needed_bytes
        least: dict[int, int] = {}
        for groups, held in sorted((*proven, *((g, max(h, needed)) for g, h in self.open))):
            if not least or held < min(least.values()):
                least[groups] = held
        return Frontier(tuple(candidates), self.exhaustive, tuple(least.items()), self.nodes)

    def root(self, levels: tuple[Level, ...]) -> _Node:
        """The level that holds most comes first: it moves the bound most."""
        weights = self.choices.weights

        def least_held(level: Level) -> int:
            return int((level.blocks * (level.planes @ weights)).min())

        nothing = np.zeros_like(weights)
        return _Node((), tuple(sorted(levels, key=least_held, reverse=True)), nothing, nothing)

    def enter(self, node: _Node) -> _Curve:
        """The curve of a node; what its choices come to, put together, is recorded."""
        self.nodes += 1
        curve = self.curve(node)
        self.record_along(node, curve)
        return curve

    def curve(self, node: _Node) -> _Curve:
        weights = self.choices.weights
        needed = tuple(np.maximum(level.planes, node.planes) @ weights for level in node.left)
        least = max(int(needs.min()) for needs in needed)
        block_bytes = np.unique(np.concatenate(needed))
        block_bytes = block_bytes[block_bytes >= least]
        blocks, groups, best = np.zeros_like(block_bytes), np.zeros_like(block_bytes), []
        for level, needs in zip(node.left, needed, strict=True):
            order = np.argsort(needs, kind="stable")
            until = np.searchsorted(needs[order], block_bytes, side="right") - 1
            # Of equally few blocks, those that are not moved.
            cost = level.blocks[order] * self.scale + level.moved[order]
            fewest = np.minimum.accumulate(cost)
            is_first = np.concatenate(([True], fewest[1:] < fewest[:-1]))
            place = np.maximum.accumulate(np.where(is_first, np.arange(len(cost)), 0))
            best.append(order[place[until]])
            blocks += level.blocks[best[-1]]
            groups += np.minimum.accumulate(level.splits[order])[until]
        return _Curve(block_bytes, needed, tuple(best), blocks, groups)

    def costs(self, node: _Node, curve: _Curve) -> Integers:
        """What a grouping below ``node`` costs at least, for each size of a block."""
        held = curve.block_bytes * (node.blocks + curve.blocks)
        costs: Integers = np.maximum(held, self.choices.needed_bytes) * self.scale + node.moved
        return costs

    def is_open(self, node: _Node, curve: _Curve) -> bool:
        """Whether something better than what is known may lie below ``node``."""
        known = self.known[node.groups + curve.groups]
        return bool((self.costs(node, curve) < known).any())

    def record_along(self, node: _Node, curve: _Curve) -> None:
        """Record the choices of the curve wherever they could be worth something."""
        promising = self.costs(node, curve) < self.known[node.groups + curve.groups]
        if not promising.any():
            return
        sizes = len(curve.block_bytes)
        assigned = np.broadcast_to(node.assigned, (sizes, len(node.assigned)))
        groups, moved = np.full(sizes, node.groups), np.full(sizes, node.moved)
        for level, best in zip(node.left, curve.best, strict=True):
            assigned = np.maximum(assigned, level.assigned[best])
            groups = groups + level.splits[best]
            moved = moved + level.moved[best]
        blocks = node.blocks + curve.blocks
        costs = (assigned @ self.choices.weights) * blocks * self.scale + moved
        for index in np.flatnonzero(promising & (costs < self.known[groups])):
            picks = zip(node.left, curve.best, strict=True)
            options = [(level, int(best[index])) for level, best in picks]
            self.record((*node.chosen, *options), int(groups[index]), int(costs[index]))

    def record(self, chosen: tuple[tuple[Level, int], ...], groups: int, cost: int) -> None:
        if cost >= self.known[groups]:
            return
        assigned = np.max([level.assigned[option] for level, option in chosen], axis=0)
        blocks = sum(int(level.blocks[option]) for level, option in chosen)
        block = int(assigned @ self.choices.weights)
        bundles = tuple(level.bundles[option] for level, option in chosen)
        self.best[groups] = (cost, Candidate(bundles, groups, block * blocks, block, blocks))
        self.known[groups:] = np.minimum(self.known[groups:], cost)

    def descend(self, node: _Node, curve: _Curve) -> None:
        if not self.is_open(node, curve):
            return
        if self.nodes >= self.node_limit:
            self.leave(node, curve)
            return
        if len(node.left) <= 2:
            self.finish(node)
            return
        level = node.left[0]
        for option in self.promising(node, curve):
            child = self.child(node, level, option)
            if child is not None:
                self.descend(child, self.enter(child))

    def leave(self, node: _Node, curve: _Curve | None = None) -> None:
        """Note what may lie below a node that is not looked at."""
        self.exhaustive = False
        curve = curve or self.curve(node)
        held = self.costs(node, curve) // self.scale
        groups = node.groups + curve.groups
        self.open += zip(groups.tolist(), held.tolist(), strict=True)

    def promising(self, node: _Node, curve: _Curve) -> list[int]:
        """Options of the first level that may lead to something better, the best bound first."""
        level, needs = node.left[0], curve.needed[0]
        own = level.blocks[curve.best[0]]
        others = curve.blocks - own
        fewest = np.minimum.accumulate(level.splits[np.argsort(needs)])
        until = np.searchsorted(np.sort(needs), curve.block_bytes, side="right") - 1
        other_groups = curve.groups - fewest[until]
        held = curve.block_bytes * (node.blocks + others + level.blocks[:, None])
        costs = held * self.scale + node.moved + level.moved[:, None]
        groups = node.groups + other_groups + level.splits[:, None]
        allowed = curve.block_bytes >= needs[:, None]
        is_open = (allowed & (costs < self.known[groups])).any(axis=1)
        lowest = np.where(allowed, costs, np.iinfo(np.int64).max).min(axis=1)
        order = np.argsort(lowest, kind="stable")
        return [int(option) for option in order[is_open[order]]]

    def child(self, node: _Node, level: Level, option: int) -> _Node | None:
        left = _with_other_sizes(node.left[1:], level, int(level.sizes[option]))
        if left is None:
            return None
        return _Node(
            (*node.chosen, (level, option)),
            left,
            np.maximum(node.planes, level.planes[option]),
            np.maximum(node.assigned, level.assigned[option]),
            node.blocks + int(level.blocks[option]),
            node.groups + int(level.splits[option]),
            node.moved + int(level.moved[option]),
        )

    def finish(self, node: _Node) -> None:
        """Look at every choice of the last one or two levels."""
        self.nodes += 1
        level = node.left[0]
        if len(node.left) == 1:
            self.compare(node, (level,), (np.arange(len(level.bundles)),))
            return
        last = node.left[1]
        step = max(1, PAIRS_AT_ONCE // len(last.bundles))
        for start in range(0, len(level.bundles), step):
            options = np.arange(start, min(start + step, len(level.bundles)))
            first, second = np.meshgrid(options, np.arange(len(last.bundles)), indexing="ij")
            pairs = first.ravel(), second.ravel()
            if level.table == last.table:
                differ = level.sizes[pairs[0]] != last.sizes[pairs[1]]
                pairs = pairs[0][differ], pairs[1][differ]
            self.compare(node, (level, last), pairs)

    def compare(
        self, node: _Node, levels: tuple[Level, ...], options: tuple[Integers, ...]
    ) -> None:
        """Record what is best of complete groupings, one for each row of ``options``."""
        rows = len(options[0])
        planes = np.broadcast_to(node.planes, (rows, len(node.planes)))
        assigned = np.broadcast_to(node.assigned, (rows, len(node.assigned)))
        blocks, groups = np.full(rows, node.blocks), np.full(rows, node.groups)
        moved = np.full(rows, node.moved)
        for level, option in zip(levels, options, strict=True):
            planes = np.maximum(planes, level.planes[option])
            assigned = np.maximum(assigned, level.assigned[option])
            blocks = blocks + level.blocks[option]
            groups = groups + level.splits[option]
            moved = moved + level.moved[option]
        weights = self.choices.weights
        costs = (assigned @ weights) * blocks * self.scale + moved
        for row in _best_by_groups(groups, costs, self.known):
            chosen = zip(levels, (int(option[row]) for option in options), strict=True)
            self.record((*node.chosen, *chosen), int(groups[row]), int(costs[row]))
        # What our assignments do not reach, another might.
        least = (planes @ weights) * blocks
        for row in _best_by_groups(groups, least * self.scale, self.known):
            if least[row] * self.scale < costs[row] - moved[row]:
                self.open.append((int(groups[row]), int(least[row])))


def _best_by_groups(groups: Integers, costs: Integers, known: Integers) -> list[int]:
    """Rows that cost less than what is known, the cheapest for each number of groups."""
    rows = np.flatnonzero(costs < known[groups])
    rows = rows[np.lexsort((costs[rows], groups[rows]))]
    _, first = np.unique(groups[rows], return_index=True)
    return [int(row) for row in rows[first]]


def _with_other_sizes(
    levels: tuple[Level, ...], decided: Level, size: int
) -> tuple[Level, ...] | None:
    """``levels`` without blocks of ``size`` in those of the decided table; None if one is empty."""
    left = [level.without_size(size) if level.table == decided.table else level for level in levels]
    return tuple(left) if all(level.bundles for level in left) else None

# SPDX-License-Identifier: Apache-2.0
"""The search for KV groups: the least memory for every number of groups.

A block id is one number for every group: whoever owns block b owns it in every pool. A request
therefore holds (bytes of one block over all pools) x (blocks of all groups), and that product is
what is minimised.

Contiguous components cannot be padded (the operators take no strides), so two components can share
a plane of the pool only when they have equally many bytes per block. A block hence costs, for every
size of component, that size times the most components of it that any one group has. Layers whose
operators take strides lie page after page instead: they cost the most bytes that any one group has.
A state may also be the first of several rows of its block, where the backend takes block ids that
are multiplied by that number; it then fits a plane that would be idle.

The choices: which types of layer with equal holdings go together, the block size of each such
bundle, and into how many groups it is split. Layers of one type are alike, so they get blocks of
one size and are dealt out evenly. All such choices are searched, depth first with a lower bound, on
integers only, in a fixed order: the same layers always give the same answer.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import product
from operator import mul

from mkv_ascend.layout.demand import Holding, Request

NODE_LIMIT = 30_000
"""Partial plans looked at before the search stops with the best so far, after about 300 ms. Pairs
of public models take 80 to 7000."""


@dataclass(frozen=True)
class LayerType:
    """Layers that are alike for grouping. Fields as in ``LayerNeed``; ``count``: how many."""

    holding: Holding
    block_sizes: tuple[int, ...]
    row_bytes: tuple[int, ...]
    state_bytes: tuple[int, ...]
    takes_strides: bool
    takes_scaled_ids: bool
    kernel_block: int | None
    count: int

    def component_bytes(self, block_size: int) -> tuple[int, ...]:
        return tuple(row * block_size for row in self.row_bytes) + self.state_bytes

    @property
    def may_scale(self) -> bool:
        """Whether its one state may be widened to a plane of another layer."""
        states_only = len(self.state_bytes) == 1 and not self.row_bytes
        return self.takes_scaled_ids and states_only and not self.takes_strides


@dataclass(frozen=True)
class Bundle:
    """Types (indices) that go together, in ``splits`` groups of ``block_size`` tokens a block.

    ``scales``: for each type, rows that one block has in its state's tensor (see ``LayerNeed``).
    """

    types: tuple[int, ...]
    block_size: int
    splits: int
    scales: tuple[int, ...]


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
    search looked at every choice before it reached its limit of nodes.
    """

    candidates: tuple[Candidate, ...]
    exhaustive: bool


@dataclass(frozen=True)
class _Option:
    """One way to build a bundle.

    ``planes``: components per size; ``paged``: bytes of strided pages; ``block``: bytes of both.
    """

    bundle: Bundle
    blocks: int
    planes: tuple[int, ...]
    paged: int
    block: int
    moved: int


def search(
    types: tuple[LayerType, ...],
    request: Request,
    node_limit: int = NODE_LIMIT,
) -> Frontier:
    """The frontier of groupings for ``types``, measured with ``request``.

    Raises ValueError if a type has no layers.
    """
    if any(layer_type.count < 1 for layer_type in types):
        raise ValueError("a layer type without layers cannot be grouped; leave it out")
    if not types:
        return Frontier((), exhaustive=True)
    return _Search(types, request, node_limit).run()


def _partitions(items: tuple[int, ...]) -> Iterator[tuple[tuple[int, ...], ...]]:
    """All ways to put ``items`` into bundles; everything together comes first."""
    if not items:
        yield ()
        return
    head, rest = items[0], items[1:]
    for mask in range(2 ** len(rest) - 1, -1, -1):
        chosen = [item for i, item in enumerate(rest) if mask >> i & 1]
        left = tuple(item for i, item in enumerate(rest) if not mask >> i & 1)
        for others in _partitions(left):
            yield ((head, *chosen), *others)


def _splits(members: list[LayerType]) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Numbers of groups worth trying, with the most layers of each type in one group."""
    seen: set[tuple[int, ...]] = set()
    most = max(member.count for member in members)
    for splits in range(1, most + 1):
        counts = tuple(-(-member.count // splits) for member in members)
        if counts not in seen:
            seen.add(counts)
            yield splits, counts


@dataclass
class _Search:
    types: tuple[LayerType, ...]
    request: Request
    node_limit: int
    best: dict[int, tuple[int, int, Candidate]] = field(default_factory=dict)
    nodes: int = 0
    exhaustive: bool = True

    def __post_init__(self) -> None:
        contiguous = [layer_type for layer_type in self.types if not layer_type.takes_strides]
        tokens = {
            row * block_size
            for layer_type in contiguous
            for block_size in layer_type.block_sizes
            for row in layer_type.row_bytes
        }
        states = {size for layer_type in contiguous for size in layer_type.state_bytes}
        self.token_sizes = tuple(sorted(tokens))
        self.sizes = tuple(sorted(tokens | states))
        self.options: dict[tuple[int, ...], list[_Option]] = {}

    def run(self) -> Frontier:
        by_table: dict[tuple[Holding, int | None], list[int]] = {}
        for index, layer_type in enumerate(self.types):
            table = (layer_type.holding, layer_type.kernel_block)
            by_table.setdefault(table, []).append(index)
        per_table = [list(_partitions(tuple(members))) for members in by_table.values()]
        for parts in product(*per_table):
            if self.nodes >= self.node_limit:
                self.exhaustive = False
                break
            self.search_partition([types for part in parts for types in part])
        candidates: list[Candidate] = []
        for groups in sorted(self.best):
            candidate = self.best[groups][2]
            if not candidates or candidate.held_bytes < candidates[-1].held_bytes:
                candidates.append(candidate)
        return Frontier(tuple(candidates), self.exhaustive)

    def search_partition(self, parts: list[tuple[int, ...]]) -> None:
        levels = [self.bundle_options(part) for part in parts]
        if not all(levels):
            return
        # The bundle that holds most is decided first: it moves the bound most.
        levels.sort(key=lambda options: -min(o.blocks * o.block for o in options))
        least_blocks = [min(option.blocks for option in options) for options in levels]
        rest = [sum(least_blocks[depth + 1 :]) for depth in range(len(levels))]
        for depth, options in enumerate(levels):
            others = sum(least_blocks) - least_blocks[depth]
            options.sort(key=lambda o: (o.block * (o.blocks + others), o.bundle.splits, o.moved))
        self.descend(levels, rest, 0, (), (0,) * len(self.sizes), 0, 0, 0, 0)

    def bundle_options(self, part: tuple[int, ...]) -> list[_Option]:
        if part not in self.options:
            self.options[part] = list(self.make_options(part))
        return list(self.options[part])

    def make_options(self, part: tuple[int, ...]) -> Iterator[_Option]:
        members = [self.types[index] for index in part]
        common = [
            size
            for size in members[0].block_sizes
            if all(size in member.block_sizes for member in members)
        ]
        for block_size in common:
            blocks = members[0].holding.blocks(block_size, self.request)
            moved = sum(block_size for member in members if member.block_sizes[0] != block_size)
            for splits, counts in _splits(members):
                for scales in product(*(self.scales(member) for member in members)):
                    planes, paged = self.block_contents(members, counts, block_size, scales)
                    yield _Option(
                        Bundle(part, block_size, splits, scales),
                        blocks * splits,
                        planes,
                        paged,
                        self.plane_bytes(planes) + paged,
                        moved + sum(scales) - len(scales),
                    )

    def scales(self, member: LayerType) -> tuple[int, ...]:
        """1, and the scales that make the type's state as large as a plane of tokens."""
        if not member.may_scale:
            return (1,)
        state = member.state_bytes[0]
        wider = (size // state for size in self.token_sizes if size % state == 0)
        return (1, *(scale for scale in wider if scale > 1))

    def block_contents(
        self,
        members: list[LayerType],
        counts: tuple[int, ...],
        block_size: int,
        scales: tuple[int, ...],
    ) -> tuple[tuple[int, ...], int]:
        """Components of each size, and bytes of strided pages, in one block of one group."""
        planes = dict.fromkeys(self.sizes, 0)
        paged = 0
        for member, count, scale in zip(members, counts, scales, strict=True):
            for size in member.component_bytes(block_size):
                if member.takes_strides:
                    paged += size * count
                else:
                    planes[size * scale] += count
        return tuple(planes.values()), paged

    def plane_bytes(self, planes: tuple[int, ...]) -> int:
        total: int = sum(map(mul, self.sizes, planes))
        return total

    def descend(
        self,
        levels: list[list[_Option]],
        rest: list[int],
        depth: int,
        chosen: tuple[Bundle, ...],
        planes: tuple[int, ...],
        paged: int,
        blocks: int,
        groups: int,
        moved: int,
    ) -> None:
        if depth == len(levels):
            self.record(chosen, planes, paged, blocks, groups, moved)
            return
        remaining = len(levels) - depth - 1
        for option in levels[depth]:
            if self.nodes >= self.node_limit:
                self.exhaustive = False
                return
            self.nodes += 1
            new_planes = tuple(map(max, planes, option.planes))
            new_paged = max(paged, option.paged)
            new_blocks = blocks + option.blocks
            new_groups = groups + option.bundle.splits
            new_moved = moved + option.moved
            bound = (self.plane_bytes(new_planes) + new_paged) * (new_blocks + rest[depth])
            if self.beaten(bound, new_moved, new_groups + remaining):
                continue
            self.descend(
                levels,
                rest,
                depth + 1,
                (*chosen, option.bundle),
                new_planes,
                new_paged,
                new_blocks,
                new_groups,
                new_moved,
            )

    def beaten(self, bound: int, moved: int, groups: int) -> bool:
        """Whether a grouping that is known needs no more groups and no more bytes.

        Of equals, the one that leaves more layers at their own block size is kept.
        """
        return any(
            known <= groups and (held, known_moved) <= (bound, moved)
            for known, (held, known_moved, _) in self.best.items()
        )

    def record(
        self,
        chosen: tuple[Bundle, ...],
        planes: tuple[int, ...],
        paged: int,
        blocks: int,
        groups: int,
        moved: int,
    ) -> None:
        block_bytes = self.plane_bytes(planes) + paged
        candidate = Candidate(chosen, groups, block_bytes * blocks, block_bytes, blocks)
        for known in [known for known in self.best if known > groups]:
            if self.best[known][:2] >= (candidate.held_bytes, moved):
                del self.best[known]
        self.best[groups] = (candidate.held_bytes, moved, candidate)

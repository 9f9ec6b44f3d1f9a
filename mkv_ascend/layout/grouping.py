# SPDX-License-Identifier: Apache-2.0
"""Layers to KV groups, with an explicit objective whose price is part of the answer.

Layers share a block table when they hold the same tokens (``Holding``) in blocks of the same size;
their pages may differ. A draft's layers so fold into the target's groups. The groups are found by
``search``; here the objective chooses among them, and the layers are dealt out.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from mkv_ascend.layout.demand import Holding, Request
from mkv_ascend.layout.kind import Role, Word
from mkv_ascend.layout.needs import LayerNeed
from mkv_ascend.layout.search import NODE_LIMIT, Candidate, Frontier, LayerType, search

MIB = 2**20
USUAL_MAX_BLOCK_SIZE = 512
"""Tokens. Larger blocks are not tried unless a layer's own are 512 or more: then twice those. A
prefix hit is a multiple of the largest block, and a request leaves half of its last one empty on
average."""
FEWEST_BLOCKS_OF_A_REQUEST = 16
"""Nor are blocks, beyond the layers' own, of which the longest request would have fewer than these:
short requests would never have a prefix hit."""
USUAL_PADDING_FRACTION = 0.15
"""Padding that fewer groups are worth when no limit is set. vLLM's own grouping of Gemma 3 with a
draft pads 14 %."""


class Objective(Word):
    """What to minimise first."""

    FEWEST_GROUPS = "fewest_groups"
    """Fewest KV groups that keep to the limit of padding, then least memory."""
    LEAST_MEMORY = "least_memory"
    """Least memory of one request, then fewest KV groups."""


class GroupingError(ValueError):
    """Layers that cannot be grouped as asked; the message has the numbers and what to change."""


@dataclass(frozen=True)
class GroupingOptions:
    """``max_padding_fraction``: largest share, 0 to 1, of a request's memory that may be padding.

    Fewer groups pad more: without a limit all layers with a sliding window would become one group
    however many they are, at several times the memory. A limit that nothing keeps to is an error.
    None asks for ``USUAL_PADDING_FRACTION`` or, where even the least padding is more, for that.
    ``hash_block_size``: tokens that vLLM hashes at a time for prefix caching, when the user has
    fixed it: it must divide every block size. ``max_block_size``: no layer gets larger blocks than
    this unless its own are larger. Prefix hits come in multiples of the largest. None asks for
    ``USUAL_MAX_BLOCK_SIZE``, and less for short requests (``FEWEST_BLOCKS_OF_A_REQUEST``).
    """

    objective: Objective = Objective.FEWEST_GROUPS
    max_padding_fraction: float | None = None
    max_block_size: int | None = None
    hash_block_size: int | None = None
    node_limit: int = NODE_LIMIT

    def __post_init__(self) -> None:
        limit = self.max_padding_fraction
        if limit is not None and not 0 <= limit <= 1:
            raise GroupingError(
                f"max_padding_fraction is {self.max_padding_fraction}; allowed: 0 to 1, the share "
                "of the memory of a request that may be padding"
            )
        if self.max_block_size is not None and self.max_block_size < 1:
            raise GroupingError(f"max_block_size is {self.max_block_size}; allowed: 1 or more")

    def largest_block_size(self, own: Iterable[int], request: Request) -> int:
        """The largest block size, in tokens, to try for layers with these block sizes."""
        if self.max_block_size is not None:
            return self.max_block_size
        usual = max([USUAL_MAX_BLOCK_SIZE, *(2 * size for size in own)])
        return min(usual, request.tokens // FEWEST_BLOCKS_OF_A_REQUEST)


@dataclass(frozen=True)
class Group:
    """One KV group: layer names with a target's layer first where there is one.

    ``blocks``: blocks of ``block_size`` tokens that one request holds of it. ``id_scales``: for
    each layer, rows that a block has in its tensor of states; the block ids that its backend is
    given must be multiplied by it (1 for all layers without ``LayerNeed.takes_scaled_ids``).
    """

    layers: tuple[str, ...]
    block_size: int
    blocks: int
    has_draft: bool
    holding: Holding
    id_scales: tuple[int, ...]


@dataclass(frozen=True)
class Cost:
    """What a grouping costs one request. ``needed_bytes``: the same without any padding."""

    groups: int
    held_bytes: int
    needed_bytes: int

    @property
    def padding_fraction(self) -> float:
        """Share of the held bytes that holds nothing of the request."""
        return max(0.0, 1 - self.needed_bytes / self.held_bytes) if self.held_bytes else 0.0

    def __str__(self) -> str:
        groups = f"{self.groups} group" + ("s" if self.groups != 1 else "")
        return f"{groups}, {self.held_bytes / MIB:.0f} MiB, {self.padding_fraction:.1%} padding"


@dataclass(frozen=True)
class Grouping:
    """The chosen groups, what they cost, and what could be had instead.

    ``block_bytes``: bytes of one block id over all pools. ``alternatives``: the cost of every
    grouping that is not beaten in both groups and bytes, from fewest groups to least memory, the
    chosen one included. ``exhaustive``: whether the search saw every possibility.
    """

    objective: Objective
    groups: tuple[Group, ...]
    block_bytes: int
    cost: Cost
    other_cost: Cost
    alternatives: tuple[Cost, ...]
    exhaustive: bool

    @property
    def other_objective(self) -> Objective:
        """The objective that was not asked for; ``other_cost`` is its price."""
        return _other(self.objective)

    @property
    def prefix_hit_tokens(self) -> int:
        """Prefix hits are multiples of this many tokens (vLLM's ``scheduler_block_size``).

        States have no say in it where they are not cached by prefix.
        """
        return math.lcm(*(group.block_size for group in self.groups)) if self.groups else 1


def _other(objective: Objective) -> Objective:
    if objective is Objective.FEWEST_GROUPS:
        return Objective.LEAST_MEMORY
    return Objective.FEWEST_GROUPS


def group_layers(
    layers: Iterable[LayerNeed], request: Request, options: GroupingOptions | None = None
) -> Grouping:
    """Group ``layers`` (in the order of execution) for ``options.objective``.

    ``request`` is what memory is measured with. Raises GroupingError when two layers have the same
    name, a layer has no allowed block size, or nothing keeps to ``max_padding_fraction``.
    """
    options = options or GroupingOptions()
    needs = tuple(layers)
    _check_names(needs)
    needed = sum(need.needed_bytes(request) for need in needs)
    # A state's block is one state, however many tokens its spec counts in it.
    own = [need.block_size for need in needs if need.row_bytes]
    largest = options.largest_block_size(own, request)
    members = _by_type(needs, options, largest)
    frontier = search(tuple(members), request, options.node_limit)
    if not needs:
        empty = Cost(0, 0, 0)
        return Grouping(options.objective, (), 0, empty, empty, (), exhaustive=True)
    alternatives = tuple(_cost(candidate, needed) for candidate in frontier.candidates)
    fewest = _fewest_within_limit(frontier, alternatives, len(needs), options)
    least = len(alternatives) - 1
    chosen, other = fewest, least
    if options.objective is Objective.LEAST_MEMORY:
        chosen, other = least, fewest
    candidate = frontier.candidates[chosen]
    return Grouping(
        objective=options.objective,
        groups=_deal(candidate, members, request),
        block_bytes=candidate.block_bytes,
        cost=alternatives[chosen],
        other_cost=alternatives[other],
        alternatives=alternatives,
        exhaustive=frontier.exhaustive,
    )


def _check_names(needs: Sequence[LayerNeed]) -> None:
    seen: set[str] = set()
    for need in needs:
        if need.name in seen:
            raise GroupingError(
                f"two layers are named {need.name!r}; a layer is known by its name, so each needs "
                "its own (give the draft's layers a prefix)"
            )
        seen.add(need.name)


def _by_type(
    needs: Sequence[LayerNeed], options: GroupingOptions, largest: int
) -> dict[LayerType, list[LayerNeed]]:
    """Layers by type; within a type the target's first, otherwise in the order of execution."""
    alike: dict[tuple[object, ...], list[LayerNeed]] = {}
    for need in sorted(needs, key=lambda need: need.role is not Role.TARGET):
        sizes = _allowed_block_sizes(need, options, largest)
        key = (
            need.holding,
            sizes,
            need.row_bytes,
            need.state_bytes,
            need.takes_strides,
            need.takes_scaled_ids,
            need.kernel_block,
        )
        alike.setdefault(key, []).append(need)
    return {
        LayerType(
            holding=members[0].holding,
            block_sizes=_allowed_block_sizes(members[0], options, largest),
            row_bytes=members[0].row_bytes,
            state_bytes=members[0].state_bytes,
            takes_strides=members[0].takes_strides,
            takes_scaled_ids=members[0].takes_scaled_ids,
            kernel_block=members[0].kernel_block,
            count=len(members),
        ): members
        for members in alike.values()
    }


def _allowed_block_sizes(
    need: LayerNeed, options: GroupingOptions, largest: int
) -> tuple[int, ...]:
    limit = max(largest, need.block_size)
    divisor = (options.hash_block_size or 1) if need.row_bytes else 1
    sizes = tuple(size for size in need.block_sizes if size <= limit and size % divisor == 0)
    if not sizes:
        raise GroupingError(
            f"layer {need.name}: of its block sizes {list(need.block_sizes)} none is a multiple "
            f"of hash_block_size {divisor}; choose a hash_block_size that divides one of them"
        )
    return sizes


def _cost(candidate: Candidate, needed: int) -> Cost:
    return Cost(candidate.groups, candidate.held_bytes, needed)


def _fewest_within_limit(
    frontier: Frontier, costs: Sequence[Cost], num_layers: int, options: GroupingOptions
) -> int:
    """Index of the grouping with the fewest groups that keeps to the limit of padding."""
    limit = options.max_padding_fraction
    if limit is None:
        limit = max(USUAL_PADDING_FRACTION, costs[-1].padding_fraction)
    for index, cost in enumerate(costs):
        if cost.padding_fraction <= limit:
            return index
    best = costs[-1]
    incomplete = "" if frontier.exhaustive else " (the search was cut short by node_limit)"
    raise GroupingError(
        f"{num_layers} layers: layout.max_padding_fraction is {limit}, but the grouping with the "
        f"least padding{incomplete} has {best}: one request holds {best.held_bytes} bytes and "
        f"needs {best.needed_bytes}. Raise layout.max_padding_fraction to "
        f"{math.ceil(best.padding_fraction * 1000) / 1000} or more, leave it out, or choose a "
        "draft whose layers are closer to the target's"
    )


def _deal(
    candidate: Candidate, members: dict[LayerType, list[LayerNeed]], request: Request
) -> tuple[Group, ...]:
    """Deal the layers of each bundle out over its groups.

    Every type is dealt in turn, layer i to group i modulo the number of groups (as vLLM does, so
    that the stages of a pipeline are served alike).
    """
    types = list(members)
    groups = []
    for bundle in candidate.bundles:
        holding = types[bundle.types[0]].holding
        for split in range(bundle.splits):
            dealt = [
                (need, scale)
                for index, scale in zip(bundle.types, bundle.scales, strict=True)
                for need in members[types[index]][split :: bundle.splits]
            ]
            dealt.sort(key=lambda pair: pair[0].role is not Role.TARGET)
            groups.append(
                Group(
                    layers=tuple(need.name for need, _ in dealt),
                    block_size=bundle.block_size,
                    blocks=holding.blocks(bundle.block_size, request),
                    has_draft=any(need.role is Role.DRAFT for need, _ in dealt),
                    holding=holding,
                    id_scales=tuple(scale for _, scale in dealt),
                )
            )
    return _in_order(groups, members)


def _in_order(
    groups: Sequence[Group], members: dict[LayerType, list[LayerNeed]]
) -> tuple[Group, ...]:
    """Groups by the place of their first layer; groups of the draft alone come last."""
    names = [need.name for layers in members.values() for need in layers]
    place = {name: index for index, name in enumerate(names)}
    roles = {need.name: need.role for layers in members.values() for need in layers}
    return tuple(
        sorted(
            groups,
            key=lambda group: (
                roles[group.layers[0]] is not Role.TARGET,
                place[group.layers[0]],
            ),
        )
    )

# SPDX-License-Identifier: Apache-2.0
"""Sorts layers into KV groups by an explicit objective, and gives the price of the answer.

Layers share a block table if they keep the same tokens (``Retention``) in blocks of one size; their
pages may differ. So a draft's layers merge into the target's groups. ``search`` finds groupings.
Here the objective chooses one of them, and the layers are assigned.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from mkv_ascend.layout.kind import Role
from mkv_ascend.layout.objective import Cost, Objective, choose
from mkv_ascend.layout.page_shape import ONE_BLOCK, PageShape
from mkv_ascend.layout.requirements import LayerRequirements
from mkv_ascend.layout.retention import Request, Retention
from mkv_ascend.layout.search import NODE_LIMIT, Candidate, Frontier, search
from mkv_ascend.layout.search_options import LayerType

NO_COST = Cost(0, 0, 0)
LEAST_GAIN = 0.01
"""Share of the price of a grouping that coarser prefix hits must save to be named."""
USUAL_MAX_BLOCK_SIZE = 2048
"""Tokens. Larger blocks are not tried unless a layer's own are as large: then twice those. A
request leaves half of its last block empty on average."""
FEWEST_BLOCKS_OF_A_REQUEST = 16
"""Nor are blocks, beyond the layers' own, of which the longest request would have fewer than these:
short requests would never have a prefix hit."""


class GroupingError(ValueError):
    """Layers that cannot be grouped as asked; the message has the numbers and what to change."""


@dataclass(frozen=True)
class GroupingOptions:
    """What is asked of a grouping.

    ``max_padding_fraction``: largest share, 0 to 1, of a request's memory that may be padding; the
    fewest groups that keep to it are then taken. A limit that nothing keeps to is an error.
    ``hash_block_size``: tokens that vLLM hashes at a time for prefix caching, when the user has
    fixed it: it must divide every block size. ``max_block_size``: no layer gets larger blocks than
    this unless its own are larger. None asks for ``USUAL_MAX_BLOCK_SIZE``, and less for short
    requests (``FEWEST_BLOCKS_OF_A_REQUEST``), where hits may be coarser (``allows_coarser_hits``).
    ``prefix_caching``: whether vLLM looks for prefix hits, which are multiples of every block size.
    ``shared_pages``: whether a page may hold several blocks of a group (``page_planning``).
    """

    objective: Objective = Objective.BALANCED
    max_padding_fraction: float | None = None
    max_block_size: int | None = None
    hash_block_size: int | None = None
    node_limit: int = NODE_LIMIT
    prefix_caching: bool = True
    shared_pages: bool = True

    def __post_init__(self) -> None:
        limit = self.max_padding_fraction
        if limit is not None and not 0 <= limit <= 1:
            raise GroupingError(
                f"max_padding_fraction is {self.max_padding_fraction}; allowed: 0 to 1, the share "
                "of the memory of a request that may be padding"
            )
        if self.max_block_size is not None and self.max_block_size < 1:
            raise GroupingError(f"max_block_size is {self.max_block_size}; allowed: 1 or more")

    @property
    def allows_coarser_hits(self) -> bool:
        """Whether prefix hits may come in larger multiples: where asked for, or without hits."""
        least = self.objective is Objective.LEAST_MEMORY
        return least or self.max_block_size is not None or not self.prefix_caching

    def largest_block_size(self, own: Iterable[int], request: Request) -> int:
        """The largest block size, in tokens, to try for layers with these block sizes."""
        if self.max_block_size is not None:
            return self.max_block_size
        usual = max([USUAL_MAX_BLOCK_SIZE, *(2 * size for size in own)])
        return min(usual, request.tokens // FEWEST_BLOCKS_OF_A_REQUEST)


@dataclass(frozen=True)
class Group:
    """One KV group: layer names with a target's layer first where there is one.

    ``blocks``: blocks of ``block_size`` tokens that one request holds. ``shape``: blocks in a page.
    """

    layers: tuple[str, ...]
    block_size: int
    blocks: int
    has_draft: bool
    retention: Retention
    shape: PageShape = ONE_BLOCK

    def pages(self, request: Request) -> int:
        """Pages that ``request`` holds where it is alone."""
        return self.shape.pages(self.retention.blocks(self.block_size, request))

    def page_share(self, request: Request) -> float:
        """The same of one of many like it."""
        return self.shape.share(self.retention.blocks(self.block_size, request))


@dataclass(frozen=True)
class CoarserHits:
    """What could be had if prefix hits came in larger multiples: ``max_block_size`` asks for it."""

    max_block_size: int
    cost: Cost

    def __str__(self) -> str:
        return (
            f"prefix hits in multiples of {self.max_block_size} (layout.max_block_size: "
            f"{self.max_block_size}) would allow {self.cost}"
        )


@dataclass(frozen=True)
class Grouping:
    """The chosen groups, what they cost, and what could be had instead.

    ``block_bytes``: bytes of one block id over all pools. ``alternatives``: the cost of every
    grouping that is not beaten in both groups and bytes, from fewest groups to least memory, the
    chosen one included. ``other_cost``: of the objective that was not asked for. ``exhaustive``:
    whether the search saw every possibility. ``bound_bytes``: no grouping with as few groups holds
    fewer bytes. ``nodes``: of the search. ``coarser``: what coarser prefix hits would be worth, if
    they are not allowed and would be worth anything.
    """

    objective: Objective
    groups: tuple[Group, ...]
    block_bytes: int
    cost: Cost
    other_cost: Cost
    alternatives: tuple[Cost, ...]
    exhaustive: bool
    bound_bytes: int = 0
    nodes: int = 0
    coarser: CoarserHits | None = None

    @property
    def gap(self) -> float:
        """How far, as a share of the bound, the held bytes may be from the least: 0 if proven."""
        return self.cost.held_bytes / self.bound_bytes - 1 if self.bound_bytes else 0.0

    @property
    def other_objective(self) -> Objective:
        """The objective that was not asked for; ``other_cost`` is its price."""
        return self.objective.other

    @property
    def prefix_hit_tokens(self) -> int:
        """Prefix hits are multiples of this many tokens (vLLM's ``scheduler_block_size``).

        A block of compressed keys stands for more tokens than it has rows. States have no say in
        it where they are not cached by prefix.
        """
        groups = self.groups
        return math.lcm(*(group.retention.tokens_of_block(group.block_size) for group in groups))


def group_layers(
    layers: Iterable[LayerRequirements], request: Request, options: GroupingOptions | None = None
) -> Grouping:
    """Group ``layers`` (in the order of execution) for ``options.objective``.

    ``request`` is what memory is measured with. Raises GroupingError when two layers have the same
    name, a layer has no allowed block size, the request is too large to be counted, or nothing
    keeps to ``max_padding_fraction``.
    """
    options = options or GroupingOptions()
    needs = tuple(layers)
    check_names(needs)
    if not needs:
        return Grouping(options.objective, (), 0, NO_COST, NO_COST, (), exhaustive=True)
    found = _find(needs, request, options)
    other_options = replace(options, objective=options.objective.other)
    other = found
    if other_options.allows_coarser_hits != options.allows_coarser_hits:
        other = _find(needs, request, other_options)
    chosen = found.choose(options)
    candidate, cost = found.frontier.candidates[chosen], found.costs[chosen]
    return Grouping(
        objective=options.objective,
        groups=_assign(candidate, found.members, request),
        block_bytes=candidate.block_bytes,
        cost=cost,
        other_cost=other.costs[other.choose(other_options)],
        alternatives=found.costs,
        exhaustive=found.frontier.exhaustive,
        bound_bytes=found.frontier.bound_bytes(cost.groups),
        nodes=found.frontier.nodes,
        coarser=None if other is found else _coarser(needs, request, options, other, cost),
    )


def _coarser(
    needs: Sequence[LayerRequirements],
    request: Request,
    options: GroupingOptions,
    other: _Found,
    chosen: Cost,
) -> CoarserHits | None:
    """What larger blocks are worth; ``other`` is what was found with any of them."""
    index = choose(options.objective, other.costs, options.max_padding_fraction, other.most_bytes)
    if index is None or other.costs[index].price >= chosen.price * (1 - LEAST_GAIN):
        return None
    bundles = other.frontier.candidates[index].bundles
    largest = max(bundle.block_size for bundle in bundles)
    found = _find(needs, request, replace(options, max_block_size=largest))
    index = choose(options.objective, found.costs, options.max_padding_fraction, found.most_bytes)
    return None if index is None else CoarserHits(largest, found.costs[index])


@dataclass(frozen=True)
class _Found:
    """What a search found for layers by type, and what each grouping costs."""

    members: dict[LayerType, list[LayerRequirements]]
    frontier: Frontier
    costs: tuple[Cost, ...]
    most_bytes: int | None = None

    def choose(self, options: GroupingOptions) -> int:
        """Index of the grouping that the options ask for; GroupingError where there is none."""
        limit = options.max_padding_fraction
        index = choose(options.objective, self.costs, limit, self.most_bytes)
        if index is not None:
            return index
        best = self.costs[-1]
        layers = sum(len(members) for members in self.members.values())
        incomplete = "" if self.frontier.exhaustive else " (the search was cut short)"
        larger = "allow blocks larger than the layers' own (layout.max_block_size), "
        larger = "" if options.allows_coarser_hits else larger
        raise GroupingError(
            f"{layers} layers: layout.max_padding_fraction is {limit}, but the grouping with the "
            f"least padding{incomplete} has {best}: one request holds {best.held_bytes} bytes and "
            f"needs {best.needed_bytes}. Raise layout.max_padding_fraction to "
            f"{math.ceil(best.padding_fraction * 1000) / 1000} or more, leave it out, "
            f"{larger}or choose a draft whose layers are closer to the target's"
        )


def _find(needs: Sequence[LayerRequirements], request: Request, options: GroupingOptions) -> _Found:
    needed = sum(need.needed_bytes(request) for need in needs)
    members = _by_type(needs, options, request)
    try:
        frontier = search(tuple(members), request, options.node_limit)
    except ValueError as error:
        raise GroupingError(str(error)) from error
    costs = tuple(
        Cost(found.groups, found.held_bytes, needed, found.block_bytes, found.blocks)
        for found in frontier.candidates
    )
    return _Found(members, frontier, costs, _bytes_of_equal_pages(needs, request))


def _bytes_of_equal_pages(needs: Sequence[LayerRequirements], request: Request) -> int | None:
    """What a request holds with pages of one size and no idle ones; None for contiguous layers.

    vLLM pads the pages of packed layers so, and its groups share them. However it groups, idle
    pages can only add to this.
    """
    if not all(need.is_packed for need in needs):
        return None
    page = max(need.page_bytes(need.block_size) for need in needs)
    return page * sum(need.retention.blocks(need.block_size, request) for need in needs)


def check_names(needs: Sequence[LayerRequirements]) -> None:
    """Raises GroupingError where two layers have one name."""
    seen: set[str] = set()
    for need in needs:
        if need.name in seen:
            raise GroupingError(
                f"two layers are named {need.name!r}; a layer is known by its name, so each needs "
                "its own (give the draft's layers a prefix)"
            )
        seen.add(need.name)


def _by_type(
    needs: Sequence[LayerRequirements], options: GroupingOptions, request: Request
) -> dict[LayerType, list[LayerRequirements]]:
    """Layers by type; within a type the target's first, otherwise in the order of execution."""
    # A state's block is one state, however many tokens its spec counts in it.
    own = [need.block_size for need in needs if need.row_bytes]
    largest = options.largest_block_size(own, request)
    hits = None
    if not options.allows_coarser_hits:
        hits = math.lcm(_tokens_of_hits(needs), options.hash_block_size or 1)
    alike: dict[LayerType, list[LayerRequirements]] = {}
    for need in targets_first(needs):
        layer_type = LayerType(
            retention=need.retention,
            block_sizes=_allowed_block_sizes(need, options, largest, hits),
            row_bytes=need.row_bytes,
            state_bytes=need.state_bytes,
            takes_strides=need.takes_strides,
            kernel_block=need.kernel_block,
            count=0,
            table=need.table,
            is_packed=need.is_packed,
        )
        alike.setdefault(layer_type, []).append(need)
    return {replace(key, count=len(members)): members for key, members in alike.items()}


def _tokens_of_hits(needs: Sequence[LayerRequirements]) -> int:
    """What prefix hits are multiples of, in tokens, for the target without a draft.

    vLLM needs one group where all layers hold the same. Otherwise it makes pages equally large, by
    larger blocks where they are small (``unify_kv_cache_spec_page_size``); not beside states, whose
    page is the largest and padded to. States have no say in hits. Of layers that are all a draft's,
    what theirs make it.
    """
    target = [need for need in needs if need.role is Role.TARGET] or needs
    rows = [need for need in target if need.row_bytes]
    tokens = [need.retention.tokens_of_block(need.block_size) for need in rows]
    pages = [need.page_bytes(need.block_size) for need in rows]
    largest = max(pages, default=1)
    alike = len({need.retention for need in target}) == 1
    if alike or len(rows) < len(target) or any(largest % page for page in pages):
        return math.lcm(*tokens)
    return math.lcm(*(n * (largest // page) for n, page in zip(tokens, pages, strict=True)))


def _allowed_block_sizes(
    need: LayerRequirements, options: GroupingOptions, largest: int, hits: int | None
) -> tuple[int, ...]:
    """Those of the layer's kernels that are not too large, and make hits no coarser than ``hits``.

    Its own is always allowed, unless it is no multiple of ``hash_block_size``.
    """
    limit = max(largest, need.block_size)
    sizes = [
        size
        for size in need.block_sizes
        if size == need.block_size or (size <= limit and (hits is None or hits % size == 0))
    ]
    return multiples_of_hash(need, sizes, options.hash_block_size)


def multiples_of_hash(
    need: LayerRequirements, sizes: Sequence[int], hash_block_size: int | None
) -> tuple[int, ...]:
    """Those that ``hash_block_size`` divides, all of a state's; GroupingError where none is."""
    divisor = (hash_block_size or 1) if need.row_bytes else 1
    allowed = tuple(size for size in sizes if size % divisor == 0)
    if not allowed:
        raise GroupingError(
            f"layer {need.name}: of its block sizes {sizes} none is a multiple "
            f"of hash_block_size {divisor}; choose a hash_block_size that divides one of them"
        )
    return allowed


def _assign(
    candidate: Candidate, members: dict[LayerType, list[LayerRequirements]], request: Request
) -> tuple[Group, ...]:
    """Assign the layers of each bundle to its groups.

    The layers of a type are spread in turn (as vLLM's are, so that the stages of a pipeline are
    served alike), and what one type leaves over goes to other groups than the last type's. Groups
    of the draft alone come last.
    """
    types = list(members)
    groups = []
    for bundle in candidate.bundles:
        assigned: list[list[LayerRequirements]] = [[] for _ in range(bundle.splits)]
        for index, places in zip(bundle.types, bundle.group_of_layers(types), strict=True):
            for need, place in zip(members[types[index]], places, strict=True):
                assigned[place].append(need)
        for layers in assigned:
            groups.append(group_of(layers, bundle.block_size, request))
    needs = targets_first(need for layers in members.values() for need in layers)
    order = {need.name: index for index, need in enumerate(needs)}
    return tuple(sorted(groups, key=lambda group: order[group.layers[0]]))


def targets_first(layers: Iterable[LayerRequirements]) -> list[LayerRequirements]:
    """The layers of a target, then a draft's, each in their order."""
    return sorted(layers, key=lambda need: need.role is not Role.TARGET)


def group_of(layers: Iterable[LayerRequirements], block_size: int, request: Request) -> Group:
    """The group of these layers, which keep the same tokens."""
    members = targets_first(layers)
    retention = members[0].retention
    return Group(
        layers=tuple(need.name for need in members),
        block_size=block_size,
        blocks=retention.blocks(block_size, request),
        has_draft=any(need.role is Role.DRAFT for need in members),
        retention=retention,
    )

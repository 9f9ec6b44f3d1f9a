# SPDX-License-Identifier: Apache-2.0
"""Pages that groups share: properties of every plan, on bytes, and beside plain enumeration."""

import itertools
import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from benchmarks.published import pair_needs
from benchmarks.published_pairs import PAIRS
from mkv_ascend.layout import page_planning
from mkv_ascend.layout.grouping import Group, GroupingError
from mkv_ascend.layout.kind import Kind, Role
from mkv_ascend.layout.page_planning import LARGEST_PAGE, USUAL_MOST_GROUPS, PagePlan, plan_pages
from mkv_ascend.layout.requirements import LayerRequirements, Request, Retention, RetentionKind

REQUEST = Request(tokens=64, tokens_per_step=2)
HOLDINGS = (
    Retention(RetentionKind.ALL),
    Retention(RetentionKind.WINDOW, 8),
    Retention(RetentionKind.STATE, 1),
)


def layer(name: str, retention: Retention = HOLDINGS[0], **changed: Any) -> LayerRequirements:
    """A layer of a target with keys and values of 2 bytes a token, and blocks of 4 tokens."""
    need = LayerRequirements(
        name, Role.TARGET, Kind.FULL_ATTENTION, retention, (4,), (2, 2), kernel_block=4
    )
    return replace(need, **changed)


def random_layers(rng: random.Random) -> list[LayerRequirements]:
    """Some models' worth of small layers: windows, states, MLA, drafts with other sizes."""
    found: list[LayerRequirements] = []
    for role in Role:
        block_sizes = rng.choice(((4,), (4, 8), (8, 4)))
        for retention in rng.sample(HOLDINGS, rng.randint(1, 2)):
            is_state = retention.kind is RetentionKind.STATE
            sizes = tuple(rng.choice((1, 2, 3, 4)) for _ in range(rng.randint(1, 3)))
            table = rng.choice(("", "", "other"))
            for _ in range(rng.randint(1, 7)):
                found.append(
                    layer(
                        f"{role}.{len(found)}",
                        retention,
                        role=role,
                        block_sizes=block_sizes,
                        row_bytes=() if is_state else sizes,
                        state_bytes=tuple(7 * size for size in sizes) if is_state else (),
                        kernel_block=None if is_state else rng.choice((4, None)),
                        table=table,
                    )
                )
    rng.shuffle(found)
    return found


@cache
def random_plans() -> tuple[tuple[list[LayerRequirements], PagePlan], ...]:
    """Plans of random layers and memory."""
    rng, found = random.Random(5), []
    for _ in range(60):
        needs, memory = random_layers(rng), rng.choice((20_000, 10**5, 10**6))
        found.append((needs, plan_pages(needs, REQUEST, memory)))
    return tuple(found)


def components(group: Group, needs: Sequence[LayerRequirements]) -> list[int]:
    """Bytes of one block of each component of the group, in the order of layers."""
    by_name = {need.name: need for need in needs}
    return [
        size for name in group.layers for size in by_name[name].component_bytes(group.block_size)
    ]


def blocks_in_memory(
    plan: PagePlan, needs: Sequence[LayerRequirements], pages: int
) -> Iterator[tuple[int, int, int, int, int]]:
    """Group, block, page, and the bytes from .. to of every block of every component."""
    starts = [pages * offset for offset in itertools.accumulate(plan.planes, initial=0)]
    for index, group in enumerate(plan.groups):
        shape, following = group.shape, dict[int, int]()
        for size in components(group, needs):
            width = size * shape.per_stretch
            first = following.setdefault(width, plan.planes.index(width))
            last = following[width] = first + shape.stretches
            assert set(plan.planes[first:last]) == {width}, "planes of another width"
            assert last <= len(plan.planes), "planes that are not there"
            for block in range(pages * shape.blocks):
                page = block // shape.per_stretch % pages
                start = starts[first] + block * size
                yield index, block, page, start, start + size


@pytest.mark.parametrize("pages", [1, 3])
def test_no_byte_has_two_owners(pages: int) -> None:
    for needs, plan in random_plans():
        pages_of: dict[int, int] = {}
        owners: dict[tuple[int, int], int] = {}
        for index, block, page, start, end in blocks_in_memory(plan, needs, pages):
            assert 0 <= start < end <= pages * plan.page_bytes
            for byte in range(start, end):
                assert pages_of.setdefault(byte, page) == page
                assert owners.setdefault((index, byte), block) == block


def test_every_layer_is_in_one_group_with_layers_that_keep_the_same() -> None:
    for needs, plan in random_plans():
        by_name = {need.name: need for need in needs}
        names = sorted(name for group in plan.groups for name in group.layers)
        assert names == sorted(by_name)
        for group in plan.groups:
            members = [by_name[name] for name in group.layers]
            assert {need.retention for need in members} == {group.retention}
            assert len({need.table for need in members}) == 1
            assert len({need.kernel_block for need in members} - {None}) <= 1
            assert all(group.block_size in need.block_sizes for need in members)
            assert group.blocks == group.retention.blocks(group.block_size, REQUEST)
            assert group.has_draft == any(need.role is Role.DRAFT for need in members)
            roles = [need.role for need in members]
            assert roles == sorted(roles, key=lambda role: role is Role.DRAFT)
            for role in Role:
                names = [need.name for need in members if need.role is role]
                assert names == [need.name for need in needs if need.name in names]
        assert list(plan.planes) == sorted(plan.planes)


def with_a_block_in_a_page(plan: PagePlan, needs: Sequence[LayerRequirements]) -> int:
    """Bytes that the request would hold with k = S = 1 for the same groups."""
    planes: Counter[int] = Counter()
    for group in plan.groups:
        planes |= Counter(components(group, needs))
    page = sum(size * number for size, number in planes.items())
    return page * sum(group.blocks for group in plan.groups)


def test_never_more_than_with_a_block_in_a_page() -> None:
    better = 0
    for needs, plan in random_plans():
        simple = with_a_block_in_a_page(plan, needs)
        assert plan.held_bytes <= simple * (1 + 1e-9)
        better += plan.held_bytes < 0.9 * simple
        held = sum(group.blocks * sum(components(group, needs)) for group in plan.groups)
        assert plan.held_bytes >= held * (1 - 1e-9)
    assert better > 20


def test_groups_are_few_and_pages_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_planning, "LARGEST_PAGE", 5000)
    for needs, _ in random_plans():
        plan = plan_pages(needs, REQUEST, 10**6)
        ways = {(need.retention, need.table, need.block_size, need.kernel_block) for need in needs}
        assert len(plan.groups) <= max(USUAL_MOST_GROUPS, len(ways) + 2)
        if max(group.shape.blocks for group in plan.groups) > 1:
            assert plan.page_bytes <= 5000


def test_hits_are_as_fine_as_the_target_alone_has_them() -> None:
    target = [layer("t.0", block_sizes=(4, 8)), layer("t.1", HOLDINGS[1], block_sizes=(8, 4))]
    draft = [
        layer("d.0", role=Role.DRAFT, block_sizes=(16, 8, 4)),
        layer("d.1", HOLDINGS[1], role=Role.DRAFT, block_sizes=(8, 16)),
    ]
    plan = plan_pages([*draft, *target], REQUEST)
    assert [group.layers for group in plan.groups] == [("t.0", "d.0"), ("t.1", "d.1")]
    assert [group.block_size for group in plan.groups] == [4, 8]


def test_hits_end_where_a_block_of_compressed_keys_does() -> None:
    """A row stands for four tokens; a draft's blocks may be as large as those of a hit."""
    fewer = Retention(RetentionKind.ALL, tokens_per_row=4)
    target = layer("t.0", fewer, kernel_block=None)
    draft = layer("d.0", role=Role.DRAFT, block_sizes=(8, 4))
    plan = plan_pages([target, draft], REQUEST)
    assert [group.block_size for group in plan.groups] == [4, 8]
    assert plan.prefix_hit_tokens == 16
    # Rows of a draft that stand for as many tokens join those of the target.
    draft = layer("d.0", fewer, role=Role.DRAFT, block_sizes=(8, 4), kernel_block=None)
    (group,) = plan_pages([target, draft], REQUEST).groups
    assert (group.layers, group.block_size) == (("t.0", "d.0"), 4)


def test_a_draft_makes_no_layer_of_its_own_coarser() -> None:
    needs = [
        layer("t.0"),
        layer("d.0", HOLDINGS[1], role=Role.DRAFT, block_sizes=(16,)),
        layer("d.1", HOLDINGS[1], role=Role.DRAFT, block_sizes=(8, 16)),
    ]
    assert [group.block_size for group in plan_pages(needs, REQUEST).groups] == [4, 16, 8]


def test_windows_take_finer_blocks_that_hold_less_and_divide_their_own() -> None:
    needs = [
        layer("t.0", block_sizes=(16, 4, 8)),
        layer("t.1", HOLDINGS[1], block_sizes=(16, 4, 6, 8)),
    ]
    finer = plan_pages(needs, REQUEST).groups
    assert [(group.block_size, group.blocks) for group in finer] == [(16, 4), (4, 4)]
    hashed = plan_pages(needs, REQUEST, hash_block_size=8).groups
    assert [(group.block_size, group.blocks) for group in hashed] == [(16, 4), (8, 3)]
    alone = [needs[0], replace(needs[1], block_sizes=(16,), name="t.2")]
    kept = plan_pages([*needs, alone[1]], REQUEST).groups
    assert [group.block_size for group in kept] == [16, 16]


def test_windows_beside_states_keep_their_blocks() -> None:
    """vLLM hashes the tokens of the largest block there, which must divide all others."""
    window = layer("t.0", HOLDINGS[1], block_sizes=(16, 4, 8))
    state = layer("t.1", HOLDINGS[2], row_bytes=(), state_bytes=(7,), block_sizes=(16,))
    assert [group.block_size for group in plan_pages([window], REQUEST).groups] == [4]
    assert [group.block_size for group in plan_pages([window, state], REQUEST).groups] == [16, 16]


def test_groups_that_gain_nothing_alone_are_split_together() -> None:
    # While one of two groups has the planes of 7 bytes, the other's split frees none of them.
    sizes = [(2, 7)] * 6
    needs = [
        layer(f"{retention.kind}.{index}.{size}", retention, row_bytes=(size,))
        for retention in HOLDINGS[:2]
        for index, pair in enumerate(sizes)
        for size in pair
    ] + [layer(f"s.{index}", HOLDINGS[2], row_bytes=(), state_bytes=(56,)) for index in range(60)]
    plan = plan_pages(needs, REQUEST)
    assert len(plan.groups) == 5
    assert len(set(plan.planes)) == 1


def test_unlike_block_sizes_and_kernel_blocks_are_groups_of_their_own() -> None:
    needs = [
        layer("t.0"),
        layer("d.0", role=Role.DRAFT, block_sizes=(16,)),
        layer("d.1", role=Role.DRAFT, kernel_block=2),
        layer("d.2", role=Role.DRAFT, kernel_block=None),
        layer("d.3", role=Role.DRAFT, table="draft"),
    ]
    plan = plan_pages(needs, REQUEST)
    found = [group.layers for group in plan.groups]
    assert found == [("t.0", "d.2"), ("d.0",), ("d.1",), ("d.3",)]


def test_a_hash_block_size_is_kept_to() -> None:
    needs = [layer("t.0", block_sizes=(4, 8, 16)), layer("t.1", HOLDINGS[1], block_sizes=(8,))]
    needs.append(layer("t.2", HOLDINGS[2], row_bytes=(), state_bytes=(7,)))
    plan = plan_pages(needs, REQUEST, hash_block_size=8)
    assert [group.block_size for group in plan.groups] == [8, 8, 4]
    # It is allowed where no layer's own blocks make hits as coarse.
    assert plan_pages(needs[:1], REQUEST, hash_block_size=16).groups[0].block_size == 16
    with pytest.raises(GroupingError, match=r"t\.1.*\[8\].*hash_block_size 16"):
        plan_pages(needs, REQUEST, hash_block_size=16)


def test_names_must_be_unlike() -> None:
    with pytest.raises(GroupingError, match=r"t\.0"):
        plan_pages([layer("t.0"), layer("t.0")], REQUEST)


def test_no_layers() -> None:
    plan = plan_pages([], REQUEST)
    assert (plan.page_bytes, plan.groups, plan.held_bytes) == (0, (), 0)


def published(name: str) -> tuple[PagePlan, float]:
    """The plan of a published pair, and what it holds by what it needs."""
    (pair,) = [pair for pair in PAIRS if pair.name == name]
    needs = pair_needs(pair.target, pair.draft, pair.request, pair.ranks)
    plan = plan_pages(needs, pair.request)
    return plan, plan.held_bytes / sum(need.needed_bytes(pair.request) for need in needs)


@pytest.mark.parametrize(
    ("name", "groups", "over"),
    [
        ("Qwen3-235B-A22B + Qwen3-1.7B (32K, 4 ranks)", 1, 1.0),
        ("Command-A + Command-R7B (32K)", 2, 1.0),
        ("EXAONE-4.0-32B + EXAONE-4.0-1.2B (32K)", 3, 1.0),
        ("Gemma-3-27b + Gemma-3-1b (32K)", 5, 1.0052),
        ("Nemotron-H-8B + Llama-3.2-1B (8K)", 4, 1.0383),
        ("DeepSeek-V4-Flash + Gemma-3-1b (128K)", 7, 1.059),
    ],
)
def test_published_pairs(name: str, groups: int, over: float) -> None:
    plan, found = published(name)
    assert len(plan.groups) <= groups
    assert found <= over + 5e-5
    assert plan.page_bytes <= LARGEST_PAGE


@pytest.mark.parametrize("tokens", [8_192, 131_072])
@pytest.mark.parametrize("rows", [(1024, 128), (256, 256)], ids=["MLA", "GQA"])
def test_a_block_head_over_many_recurrent_layers(rows: tuple[int, int], tokens: int) -> None:
    """Kimi-K3 and DSpark on 16 ranks: 24 layers of MLA, 69 of KDA, and 5 that draft 7 tokens."""
    request, state = Request(tokens, 8), Retention(RetentionKind.STATE, 1, extra_blocks=7)
    states = (10 * 3 * 6 * 128 * 2, 6 * 128 * 128 * 4)
    own: dict[str, Any] = {"block_sizes": (128,), "kernel_block": None}
    needs = [
        *(layer(f"t.{index}", row_bytes=(1024, 128), **own) for index in range(24)),
        *(layer(f"s.{n}", state, row_bytes=(), state_bytes=states, **own) for n in range(69)),
        *(layer(f"d.{n}", row_bytes=rows, role=Role.DRAFT, **own) for n in range(5)),
    ]
    plan = plan_pages(needs, request)
    assert len(plan.groups) <= 4
    assert plan.held_bytes <= 1.13 * sum(need.needed_bytes(request) for need in needs)


@pytest.mark.parametrize(
    ("tokens", "over"), [(8_192, 1.25), (131_072, 1.0), (1_048_576, 1.0)], ids=["8K", "128K", "1M"]
)
def test_a_block_head_costs_a_compressed_target_its_own_bytes(tokens: int, over: float) -> None:
    """DeepSeek-V4-Flash and DSpark: three layers with windows of latents, as the target's."""
    (pair,) = [one for one in PAIRS if one.name == "DeepSeek-V4-Flash + Gemma-3-1b (128K)"]
    request = replace(pair.request, tokens=tokens)
    needs = pair_needs(pair.target, pair.draft, request, pair.ranks)
    target = [need for need in needs if need.role is Role.TARGET]
    window = next(
        need for need in target if need.retention.kind is RetentionKind.WINDOW and need.row_bytes
    )
    head = [replace(window, name=f"d.{index}", role=Role.DRAFT) for index in range(3)]
    alone, both = plan_pages(target, request), plan_pages([*target, *head], request)
    own = sum(need.needed_bytes(request) for need in head)
    assert both.held_bytes - alone.held_bytes <= over * own


def test_no_page_is_larger_than_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "Gemma-3-27b + Gemma-3-1b (8K)"
    assert published(name)[0].page_bytes > 100 * 2**20
    monkeypatch.setattr(page_planning, "LARGEST_PAGE", 70 * 2**20)
    assert published(name)[0].page_bytes <= 70 * 2**20


def test_a_page_is_a_small_part_of_the_memory() -> None:
    """Unless a block of every group fills it."""
    (pair,) = [pair for pair in PAIRS if pair.name == "Gemma-3-27b + Gemma-3-1b (32K)"]
    needs = pair_needs(pair.target, pair.draft, pair.request, pair.ranks)
    plans = {gib: plan_pages(needs, pair.request, gib * 2**30) for gib in (64, 7, 4, 1)}
    assert plans[64].page_bytes > 64 * 2**20 >= plans[7].page_bytes
    assert plans[7] == plans[4], "memory is rounded to a power of two"
    one_block = plan_pages(needs, pair.request, 2**30, one_block=True)
    assert plans[1].held_bytes < one_block.held_bytes


def test_the_number_of_groups_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_planning, "USUAL_MOST_GROUPS", 2)
    monkeypatch.setattr(page_planning, "MOST_EXTRA_GROUPS", 1)
    assert len(published("Gemma-3-27b + Gemma-3-1b (8K)")[0].groups) == 4


def test_the_same_plan_in_every_process() -> None:
    code = (
        "from tests.unit.layout.test_page_planning import published\n"
        "print(published('Qwen3.5-397B-A17B + Qwen3.5-0.8B (32K, 2 ranks)'))"
    )
    printed = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(printed) == 1

# SPDX-License-Identifier: Apache-2.0
"""Pairs of published models at real depth: few groups, no more memory than ever."""

from __future__ import annotations

import pytest

from benchmarks.published import NotServedError, layers_of, pair_needs, published_names, read_facts
from benchmarks.published_pairs import PAIRS, PublishedPair
from mkv_ascend.layout.kind import Role
from mkv_ascend.layout.page_planning import plan_pages

every_pair = pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.name)


@every_pair
def test_every_pair_has_few_groups_and_never_more_memory_than_a_block_in_a_page(
    pair: PublishedPair,
) -> None:
    needs = pair_needs(pair.target, pair.draft, pair.request, pair.ranks)
    found = plan_pages(needs, pair.request)
    assert sum(len(group.layers) for group in found.groups) == len(needs)
    assert len(found.groups) <= 7
    assert found.held_bytes <= plan_pages(needs, pair.request, one_block=True).held_bytes * 1.001


def test_there_are_forty_pairs_of_every_family() -> None:
    names = {name for pair in PAIRS for name in (pair.target, pair.draft)}
    assert len({pair.name for pair in PAIRS}) == len(PAIRS) >= 40
    assert names <= set(published_names())
    for name in names:
        assert read_facts(name)["source"].startswith("https://")


def test_layers_are_those_of_the_config() -> None:
    flash = layers_of("DeepSeek-V4-Flash", Role.TARGET)
    assert len(flash) == 43 + 21 * 4 + 20 * 2
    assert {need.page_bytes(need.block_size) for need in flash} == {16_640, 131_072}
    kimi = layers_of("Kimi-Linear-48B-A3B", Role.TARGET)
    assert sum(bool(need.row_bytes) for need in kimi) == 7
    halved = layers_of("Qwen3-8B", Role.DRAFT, ranks=16)
    assert halved[0].row_bytes == (128 * 2, 128 * 2)
    with pytest.raises(NotServedError, match="cannot be divided by 3"):
        layers_of("Qwen3-8B", Role.DRAFT, ranks=3)

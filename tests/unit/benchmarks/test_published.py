# SPDX-License-Identifier: Apache-2.0
"""Pairs of published models at real depth: proven best, few groups, no more memory than allowed."""

from __future__ import annotations

import pytest

from benchmarks.kv_grid import broken_rules, plan
from benchmarks.published import NotServedError, layers_of, pair_needs, published_names, read_facts
from benchmarks.published_pairs import PAIRS, PublishedPair
from mkv_ascend.layout.grouping import GroupingOptions, group_layers
from mkv_ascend.layout.kind import Role
from mkv_ascend.layout.objective import MOST_GROUPS, Objective
from mkv_ascend.layout.retention import Request

MIB = 2**20
every_pair = pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.name)


@every_pair
def test_every_pair_is_proven_best_with_few_nodes(pair: PublishedPair) -> None:
    needs = pair_needs(pair.target, pair.draft, pair.request, pair.ranks)
    for objective in (Objective.BALANCED, Objective.LEAST_MEMORY):
        grouping = group_layers(needs, pair.request, GroupingOptions(objective))
        assert grouping.exhaustive
        assert grouping.gap <= 0.01
        assert grouping.nodes <= 300
        assert sum(len(group.layers) for group in grouping.groups) == len(needs)
    # Least memory may be bought with coarser hits and any number of groups.
    chosen = group_layers(needs, pair.request)
    assert chosen.cost.groups <= MOST_GROUPS
    assert chosen.other_cost == grouping.cost


def test_there_are_forty_pairs_of_every_family() -> None:
    names = {name for pair in PAIRS for name in (pair.target, pair.draft)}
    assert len({pair.name for pair in PAIRS}) == len(PAIRS) >= 40
    assert names <= set(published_names())
    for name in names:
        assert read_facts(name)["source"].startswith("https://")


@pytest.mark.parametrize(
    ("target", "draft", "tokens", "ranks", "groups", "mib"),
    [
        ("DeepSeek-V3.2", "Gemma-3-27b", 8_192, 1, 5, 2_442),
        ("DeepSeek-V3", "Gemma-3-27b", 1_024, 8, 2, 256),
        ("DeepSeek-V3.2", "Gemma-2-27B", 8_192, 1, 2, 3_281),
        ("Gemma-3-27b", "Gemma-3-1b", 8_192, 1, 9, 1_547),
        ("DeepSeek-V4-Flash", "Llama-3.2-1B", 32_768, 1, 7, 2_316),
        ("DeepSeek-V4-Pro", "GPT-OSS-20b", 32_768, 1, 8, 2_184),
    ],
)
def test_pairs_that_once_had_a_group_for_nearly_every_layer(
    target: str, draft: str, tokens: int, ranks: int, groups: int, mib: int
) -> None:
    """These had 93, 113, 77, 42, 145 and 207."""
    request = Request(tokens, tokens_per_step=4)
    cost = group_layers(pair_needs(target, draft, request, ranks), request).cost
    assert (cost.groups, round(cost.held_bytes / MIB)) == (groups, mib)


@pytest.mark.parametrize(
    ("target", "hits"),
    [
        ("Gemma-4-31B", 256),
        ("MiMo-V2-Flash", 256),
        # 128 rows, each of 128 compressed tokens.
        ("DeepSeek-V4-Flash", 16_384),
    ],
)
def test_hits_are_those_that_vllm_has_where_pages_of_the_target_differ(
    target: str, hits: int
) -> None:
    """vLLM doubles the blocks whose pages are half as large, so finer hits are not lost."""
    request = Request(32_768, tokens_per_step=4)
    grouping = group_layers(pair_needs(target, "Qwen3-0.6B", request), request)
    assert grouping.prefix_hit_tokens == hits


@pytest.mark.parametrize("tokens", [8_192, 131_072])
def test_layers_of_one_spec_share_groups_evenly(tokens: int) -> None:
    """Cohere2 + Granite-4: no group has one layer of a kind where another has three."""
    request = Request(tokens, tokens_per_step=4)
    needs = pair_needs("Command-R7B", "Granite-4.0-H-Tiny", request)
    kind_of = {need.name: (need.retention, need.row_bytes, need.state_bytes) for need in needs}
    shares: dict[object, list[int]] = {}
    for group in group_layers(needs, request).groups:
        kinds = [kind_of[name] for name in group.layers]
        for kind in set(kinds):
            shares.setdefault(kind, []).append(kinds.count(kind))
    assert all(max(counts) - min(counts) <= 1 for counts in shares.values())


@pytest.mark.parametrize(
    "case",
    [
        ("Gemma-3-27b", "Gemma-3-1b", 1, 131_072),
        ("DeepSeek-V3.2", "Gemma-3-27b", 8, 4_096),
        ("Qwen3-Next-80B-A3B", "Granite-4.0-H-Tiny", 2, 32_768),
        ("Llama-3.1-8B", "LFM2-1.2B", 4, 1_024),
    ],
)
def test_the_rules_of_the_grid(case: tuple[str, str, int, int]) -> None:
    assert broken_rules(plan(case)) == []


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

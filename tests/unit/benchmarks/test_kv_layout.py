# SPDX-License-Identifier: Apache-2.0
"""The KV layout benchmark and pairs of published models; tests/emulated has vLLM's part."""

import pytest

from benchmarks.kv_layout import as_table, figures, summary
from benchmarks.models import load_pair, load_pair_of_pages
from benchmarks.published import NotServedError, layers_of, pair_needs, published_names, read_facts
from benchmarks.published_pairs import PAIRS, PublishedPair
from benchmarks.rows import ROWS, Row
from mkv_ascend.layout.kind import Role
from mkv_ascend.layout.page_planning import plan_pages

RAISES = {"groups": None, "mib": None, "error": "NotImplementedError: no (file.py:1)"}


def test_the_summary_counts_rows_in_each_way_of_planning() -> None:
    rows = [figures(row, RAISES) for row in ROWS[:3]]
    shared = [row["shared"] for row in rows]
    assert [part["groups"] for part in shared] == [2, 5, 4]
    assert max(part["over_ideal"] for part in shared) <= 1.01
    assert all(0 < part["page_mib"] <= 256 for part in shared)
    found = summary(rows)
    assert found.keys() == {"shared", "one_block"}  # no layers that take strides
    assert (found["shared"]["near_ideal"], found["shared"]["groups"]) == (3, 11)
    assert found["one_block"]["worst"] == max(row["one_block"]["over_ideal"] for row in rows) > 1.1
    last = as_table({"rows": rows}).splitlines()[-2]
    assert last.startswith("shared: rows 3, near_ideal 3, ")


every_row = pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)


@every_row
def test_neither_groups_nor_memory_are_more_than_folding_gives(row: Row) -> None:
    found = figures(row, RAISES)
    assert found["ideal_mib"] == row.ideal_mib
    assert found["shared"]["groups"] <= row.goal.groups
    assert found["shared"]["mib"] <= row.goal.mib
    target = [one for one in load_pair(row.target, row.draft).needs() if one.role is Role.TARGET]
    assert found["shared"]["prefix_hit_tokens"] == max(x.block_size for x in target if x.row_bytes)


def test_rows_of_layers_that_take_strides_are_near_the_ideal() -> None:
    found = [figures(row, RAISES)["strided"] for row in ROWS]
    over = [part["over_ideal"] for part in found if part is not None]
    assert len(over) == 8
    assert max(over) < 1.01


def test_pages_of_one_size_are_those_that_the_second_host_makes() -> None:
    """Figures of Platform._align_hybrid_block_size for states of 1072 KiB and keys of 1 KiB."""
    pair = load_pair_of_pages("Qwen3-Next-80B-A3B", "eagle3-2x128")
    assert {layer.block_size for layer in pair.layers} == {640}
    for layer, need in zip(pair.layers, pair.needs_of_pages(), strict=True):
        assert max(layer.page_bytes, layer.padded_page_bytes) == 640 * 2048
        assert need.is_packed
        assert need.page_bytes(640) == layer.page_bytes
    assert not any(need.is_packed for need in pair.needs())
    without = load_pair_of_pages("Llama-3.1-8B", "gemma-3-1b")
    assert without == load_pair("Llama-3.1-8B", "gemma-3-1b")
    assert without.needs_of_pages() == without.needs()


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

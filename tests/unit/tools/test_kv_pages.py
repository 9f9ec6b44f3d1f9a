# SPDX-License-Identifier: Apache-2.0
"""docs/kv_groups.md has the pairs for which larger blocks save memory."""

from __future__ import annotations

import kv_pages


def test_figures_of_a_pair_agree() -> None:
    found = kv_pages.read()
    assert (len(found["pairs"]), len(found["exceptions"])) == (37, 20)
    for pair in found["pairs"]:
        held = [pair[name] for name in ("chosen", "same_hits", "any_hits")]
        assert [one["mib"] for one in held] == sorted((one["mib"] for one in held), reverse=True)
        for one in held:
            assert abs(one["mib"] / pair["ideal_mib"] - one["by_ideal"]) < 0.005, pair
    for case in found["exceptions"]:
        assert case["groups"] <= 32 < case["least_groups"]
        assert case["over"] > 8


def test_pairs_that_larger_blocks_save_memory_for_have_a_row() -> None:
    lines = kv_pages.table().splitlines()
    assert len(lines) == 2 + 16
    assert lines[2] == "| Llama-8B + gemma3-1b | 4240 | 128 | 3 | 4656 | 512 | 2 | 4274 |"

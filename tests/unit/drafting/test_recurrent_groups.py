# SPDX-License-Identifier: Apache-2.0
"""Block tables of recurrent layers that are separate from the engine's, and what replays them."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from mkv_ascend.drafting.counts import Eager
from mkv_ascend.drafting.draft import TargetOutput
from mkv_ascend.drafting.recurrent_groups import RecurrentGroup, RecurrentGroups, TargetRows
from tests.unit.drafting.fake_engine import Case, Engine
from tests.unit.drafting.fake_recurrent import Built, RecurrentBuilder


def test_rows_of_the_engine_are_the_first_rows_in_the_order_asked_for() -> None:
    groups = [
        RecurrentGroup(index, RecurrentBuilder(), (f"layers.{index}",), list) for index in range(2)
    ]
    tables = [torch.arange(begin, begin + 12, dtype=torch.int32).view(4, 3) for begin in (1, 101)]
    engine = RecurrentGroups(groups, tables, requests=4, speculative=2)
    own = engine.for_graph(groups, requests=3)
    own.take_rows(engine, torch.tensor([2, 0]))
    assert own._tables[0].tolist() == [[7, 8, 9], [1, 2, 3], [0, 0, 0]]
    assert own._tables[1].tolist() == [[107, 108, 109], [101, 102, 103], [0, 0, 0]]
    assert engine._tables[0].tolist() == torch.arange(1, 13).view(4, 3).tolist()


@torch.inference_mode()
@pytest.mark.parametrize("begins", range(3))
def test_no_graph_serves_a_batch_in_which_one_request_begins(begins: int) -> None:
    """Its prompt may be as long as the others' verify steps; its blocks hold another's states."""
    engine, each = Engine(Case("recurrent", 3), graphs=(4,)), 4
    starts = torch.arange(4, dtype=torch.int32) * each
    lengths = torch.tensor([2 * each] * 3, dtype=torch.int32)
    lengths[begins] = each
    none = torch.zeros(3, dtype=torch.int32)
    tokens = none.repeat(each)
    target = TargetOutput(tokens, tokens, none, None, None, starts, starts, lengths, lengths, each)
    assert engine.graphs.graph_for(target) is Eager.DRAFT_PREFILL
    lengths[begins] = each + 1
    assert not isinstance(engine.graphs.graph_for(target), Eager)


def test_a_replay_rebuilds_the_metadata_of_each_layer_from_its_groups_table() -> None:
    """Layers of a group share one, and groups that differ in their table alone have one builder."""
    layers = (("layers.0", "layers.2"), ("layers.1", "layers.3"))
    groups = [
        RecurrentGroup(index, RecurrentBuilder(), names, list) for index, names in enumerate(layers)
    ]
    tables = [torch.arange(begin, begin + 12, dtype=torch.int32).view(4, 3) for begin in (1, 101)]
    states = RecurrentGroups(groups, tables, requests=4, speculative=2)
    states._target_rows = TargetRows(torch.zeros(4).bool(), torch.ones(4), torch.ones(4))
    none: Any = None
    before = Built(torch.zeros(4).bool(), torch.zeros(4).bool(), torch.zeros(4, 3), none)
    metadata = dict.fromkeys((*layers[0], *layers[1]), before)
    for column in (0, 1):
        rebuilt: Any = states.rebuild_metadata(metadata, column)
        assert rebuilt.keys() == metadata.keys()
        for names, table in zip(layers, tables, strict=True):
            assert [rebuilt[name].table.tolist() for name in names] == [
                table[:, column:].tolist()
            ] * 2
            assert all((rebuilt[name].ones is None) == bool(column) for name in names)

# SPDX-License-Identifier: Apache-2.0
"""The batch that layers of a draft of mask tokens are told of, written down by plain loops."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest
import torch

from mkv_ascend.drafting.draft import PassBatch
from mkv_ascend.drafting.mask_tokens_strategy import MaskTokensStrategy
from mkv_ascend.drafting.needs import Needs
from tests.support.fake_draft import FakeDraft
from tests.unit.drafting.fake_engine import MOST_REQUESTS, Case, Engine

K = 3


def batches_of(engine: Engine, steps: int) -> list[tuple[PassBatch, Any, list[list[int]]]]:
    """What metadata is made of in each step: batch, cos_sin rows, and slots as they are then."""
    seen = []
    made = Needs.first_pass

    def first_pass(needs: Needs, batch: PassBatch, rows: Any) -> Any:
        # Tensors of the batch are views of buffers, which the next step overwrites.
        seen.append((batch, rows, [slots.tolist() for slots in batch.slots]))
        return made(needs, batch, rows)

    with patch.object(Needs, "first_pass", first_pass):
        for _ in range(steps):
            engine.step()
    return seen


@torch.inference_mode()
@pytest.mark.parametrize("rotates", [False, True])
@pytest.mark.parametrize(("kind", "size"), [("mask", 1 + K), ("anchor", K)])
def test_the_window_is_one_pass_of_equal_rows(kind: str, size: int, rotates: bool) -> None:
    engine = Engine(Case(kind, K, (4, 8), (True, True), (rotates, rotates)), seed=1)
    seen = batches_of(engine, 12)
    assert len(seen) == 12
    assert {batch.requests for batch, _, _ in seen} > {MOST_REQUESTS}
    for batch, cos_sin, slots in seen:
        starts = [size * request for request in range(batch.requests + 1)]
        assert (batch.index, batch.rows, batch.input_rows) == (0, starts[-1], starts[-1])
        assert (batch.longest_row, batch.causal, batch.rows_across_ranks) == (size, False, None)
        for found in (batch.query_start_loc, batch.query_start_loc_host):
            assert found.tolist() == starts
            assert found.dtype == torch.int32
        # All tokens of a window attend to all of it: their lengths are that of the last.
        for lengths in (batch.lengths, batch.host_lengths, batch.length_bounds):
            assert lengths is batch.lengths
            assert len(lengths) == batch.requests
        assert [len(group) for group in slots] == [batch.rows] * 2
        assert (cos_sin is None) == (not rotates)


@torch.inference_mode()
def test_the_window_knows_the_step_and_the_rows_of_other_ranks() -> None:
    engine = Engine(Case("mask", K), seed=1)
    step, ranks = object(), torch.tensor([8, 4])
    made = MaskTokensStrategy.plan

    def plan(strategy: MaskTokensStrategy, target: Any, rows: int) -> Any:
        return made(strategy, replace(target, common=step), rows)

    with (
        patch.object(FakeDraft, "share_rows", lambda _, rows: (rows, ranks)),
        patch.object(MaskTokensStrategy, "plan", plan),
    ):
        batch, _, _ = batches_of(engine, 1)[0]
    assert batch.common is step
    assert batch.rows_across_ranks is ranks


@torch.inference_mode()
def test_lengths_are_those_of_the_last_token_of_the_window() -> None:
    """They are known only once the host has waited; before, the batch has other ones."""
    engine = Engine(Case("mask", K), seed=2)
    proposed = []
    made = Needs.first_pass

    def first_pass(needs: Needs, batch: PassBatch, rows: Any) -> Any:
        proposed.append((batch.lengths.tolist(), batch.positions.tolist()))
        return made(needs, batch, rows)

    with patch.object(Needs, "first_pass", first_pass):
        for _ in range(8):
            engine.step()
    for lengths, positions in proposed:
        assert lengths == [place + 1 for place in positions[K :: K + 1]]

# SPDX-License-Identifier: Apache-2.0
"""Custom ops on the device: one launch each, no host read, as vLLM's and vllm-ascend's own code."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

# Before anything else of vllm-ascend: its modules import each other in a circle.
import vllm_ascend.ops  # noqa: F401  # isort: skip
from vllm.v1.spec_decode.utils import compute_new_slot_mapping
from vllm_ascend.utils import enable_custom_op

from mkv_ascend import envs
from mkv_ascend.ops.draft_plan import DraftPlanArguments, draft_plan
from mkv_ascend.ops.expand_inputs import ExpandInputs, expand_inputs
from mkv_ascend.ops.group_table import group_table
from mkv_ascend.ops.target_slots import TargetSlotsArguments, slot_table, target_slots
from tests.support import engine
from tests.support.emulation import ON_EMULATOR
from tests.support.pairs import (
    assert_drafts_are_the_drafts_own,
    assert_greedy_tokens_of_reference,
    scenario,
    text_prompts,
)
from tests.support.tiny_models import model_directory

pytestmark = pytest.mark.host("0.23")

DEVICE = torch.device("npu:0")
BLOCK, COLUMNS, MAX_MODEL_LEN = 128, 5, 600

LENGTHS, REJECTED, FIRST = [4, 1, 3, 3], [2, 0, 0, 0], [126, 511, 0, 597]


def npu(values: object, dtype: torch.dtype = torch.int32) -> torch.Tensor:
    return torch.tensor(values, dtype=dtype).to(DEVICE)


def empty(*shape: int) -> torch.Tensor:
    return torch.full(shape, -77, dtype=torch.int32, device=DEVICE)


@pytest.fixture(scope="module")
def batch() -> SimpleNamespace:
    """Four requests in two KV groups; one ends at a block's end, one at the maximum length."""
    starts = [0]
    positions: list[int] = []
    for first, length in zip(FIRST, LENGTHS, strict=True):
        starts.append(starts[-1] + length)
        positions += range(first, first + length)
    tables = [
        npu(
            [
                [10 * group + row * COLUMNS + column + 1 for column in range(COLUMNS)]
                for row in range(4)
            ]
        )
        for group in range(2)
    ]
    return SimpleNamespace(
        starts=npu(starts), positions=npu(positions), tables=tables, live=npu([4]),
        group_table=group_table(tables, [BLOCK, BLOCK]),
        token_ids=npu([100 + index for index in range(starts[-1])]),
        next_token_ids=npu([7, 8, 9, 10]), rejected=npu(REJECTED),
    )  # fmt: skip


def launches(run) -> dict[str, int]:
    """What a call launches; empty on hardware, where nothing counts."""
    if not ON_EMULATOR:
        run()
        return {}
    from emulated_npu import counters

    before = counters.snapshot()
    run()
    after = counters.snapshot()
    assert after.host_reads == before.host_reads
    found = {name: count - before.launches.get(name, 0) for name, count in after.launches.items()}
    return {name: count for name, count in found.items() if count}


def slots_of_vllm(batch, table, positions, starts, more, rejected) -> list[int]:
    """vLLM's own slots for rows of requests that grew by ``more`` each."""
    metadata = SimpleNamespace(
        block_table_tensor=table,
        query_start_loc=starts,
        naive_query_lens=lambda: starts[1:] - starts[:-1],
    )
    slots = compute_new_slot_mapping(metadata, positions, rejected, BLOCK, more, MAX_MODEL_LEN)
    return slots.tolist()


@pytest.mark.parametrize(("shift", "sampled"), [(False, 1), (True, 3)])
def test_expand_inputs_is_vllm_ascends_op_and_vllms_slots(batch, shift, sampled) -> None:
    enable_custom_op()
    rows = sum(LENGTHS) + 4 * (sampled - shift)
    given = ExpandInputs(
        batch.token_ids, batch.positions, batch.next_token_ids, batch.starts, batch.live,
        batch.tables, batch.group_table, sampled, shift, MAX_MODEL_LEN, empty(rows), empty(rows),
        empty(rows).to(torch.int8), empty(rows).to(torch.int8), empty(4 * sampled), empty(5),
        empty(4), empty(4), empty(2, rows), num_rejected=batch.rejected,
        hidden_rows=empty(sum(LENGTHS)), parallel_token_id=99,
    )  # fmt: skip
    found = launches(lambda: expand_inputs(given))
    assert found == ({"mkv_ascend::expand_inputs": 1} if ON_EMULATOR else {})
    ids, positions, rejected, masked, samples, hidden = (
        torch.ops._C_ascend.npu_copy_and_expand_eagle_inputs(
            batch.token_ids, batch.positions, batch.next_token_ids, batch.starts,
            batch.starts[1:] - 1 - batch.rejected, 0, 99, sampled, shift, rows,
        )
    )  # fmt: skip
    assert given.out_token_ids.tolist() == ids.tolist()
    assert given.rejected_mask.tolist() == rejected.tolist()
    assert given.masked_mask.tolist() == masked.tolist()
    assert given.sample_indices.tolist() == samples.tolist()
    if shift:
        assert given.hidden_rows.tolist() == hidden.tolist()
    inside = [position if position < MAX_MODEL_LEN else 0 for position in positions.tolist()]
    assert given.out_positions.tolist() == inside
    assert max(positions.tolist()) >= MAX_MODEL_LEN, "the batch reaches the maximum length"
    for group, table in enumerate(batch.tables):
        wanted = slots_of_vllm(
            batch, table, positions, batch.starts, sampled - shift, rejected.to(torch.bool)
        )
        assert given.slots[group].tolist() == wanted


def test_target_slots_are_vllms(batch) -> None:
    outputs = [empty(20), empty(12)]
    table = slot_table(outputs)
    found = launches(
        lambda: target_slots(TargetSlotsArguments(
            batch.positions, batch.starts, batch.live, batch.tables, batch.group_table, outputs,
            table,
        ))
    )  # fmt: skip
    assert found == ({"mkv_ascend::target_slots": 1} if ON_EMULATOR else {})
    nothing = torch.zeros(sum(LENGTHS), dtype=torch.bool, device=DEVICE)
    for output, block_table in zip(outputs, batch.tables, strict=True):
        wanted = slots_of_vllm(batch, block_table, batch.positions, batch.starts, 0, nothing)
        padding = [-1] * (output.shape[0] - len(wanted))
        assert output.tolist() == wanted + padding


def test_draft_plan_is_vllms_slots_step_by_step(batch) -> None:
    first = npu([127, 383, 511, 598])
    step_positions, lengths, slots = empty(3, 4), empty(3, 4), empty(3, 2, 4)
    found = launches(
        lambda: draft_plan(DraftPlanArguments(
            first, batch.live, batch.tables, batch.group_table, MAX_MODEL_LEN, step_positions,
            lengths, slots,
        ))
    )  # fmt: skip
    assert found == ({"mkv_ascend::draft_plan": 1} if ON_EMULATOR else {})
    nothing = torch.zeros(4, dtype=torch.bool, device=DEVICE)
    starts = npu([0, 1, 2, 3, 4])
    for step in range(3):
        moved = first + step + 1
        for group, table in enumerate(batch.tables):
            wanted = slots_of_vllm(batch, table, moved, starts, 0, nothing)
            assert slots[step, group].tolist() == wanted
    assert step_positions[2].tolist() == [130, 386, 514, 0]
    assert lengths[2].tolist() == [131, 387, 515, 1]


@pytest.mark.skipif(not ON_EMULATOR, reason="on an NPU the kernels run themselves, unchecked")
def test_an_engine_runs_through_the_kernels_under_their_checker() -> None:
    """And every value that the engine hands to them is looked at."""
    variables = {envs.OPS.name: envs.OPS_ASCENDC_HOST, envs.OPS_CHECKS.name: "1"}
    texts = text_prompts(model_directory("llama_target"), 13)
    case = scenario("llama_target", "gemma3", prompts=texts, environment=variables)
    result = engine.run(case)
    assert "Custom ops: ascendc_host" in result.log
    assert_greedy_tokens_of_reference(case, result)
    assert_drafts_are_the_drafts_own(case, result)
    assert result.mean_acceptance_length > 2.5

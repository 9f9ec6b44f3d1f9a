# SPDX-License-Identifier: Apache-2.0
"""What a stage before the last one is told of its requests' last steps, without a device."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from mkv_ascend.adapters.common.batch_rows import StatesOfEarlierStage

BLOCK = 8
K = 3


def buffer() -> SimpleNamespace:
    return SimpleNamespace(gpu=torch.full((4,), -1, dtype=torch.int32))


class Runner:
    """What is read and written of vllm-ascend's."""

    def __init__(self, mode: str = "none", hybrid: bool = True) -> None:
        self.model_config = SimpleNamespace(is_hybrid=hybrid)
        self.cache_config = SimpleNamespace(mamba_cache_mode=mode)
        self.device, self.num_spec_tokens = "cpu", K
        self.num_accepted_tokens = SimpleNamespace(np=np.full(4, 9, dtype=np.int32))
        self.num_accepted_tokens_event = SimpleNamespace(synchronize=lambda: None)
        self.mamba_state_idx: dict[str, int] = {}
        self.staged = SimpleNamespace(
            block_size=BLOCK,
            mamba_state_idx_buf=buffer(),
            num_scheduled_tokens_buf=buffer(),
            num_computed_tokens_buf=buffer(),
            num_draft_tokens_buf=buffer(),
        )
        self.copied: list[list[list[int]]] = []

    def _get_mamba_bufs(self) -> Any:
        assert self.cache_config.mamba_cache_mode == "align"
        return SimpleNamespace(postprocess_align=self.staged)

    def _update_states_after_model_execute(self, sampled: torch.Tensor, step: Any) -> None:
        """Note what vLLM's kernel would read; of row 0 the state has stayed in its block."""
        buffers = [value for name, value in vars(self.staged).items() if name != "block_size"]
        self.copied.append([one.gpu[: len(sampled)].tolist() for one in buffers])
        numbers = (sampled != -1).sum(dim=1).numpy()
        self.input_batch.num_accepted_tokens_cpu[: len(sampled)] = numbers
        self.input_batch.num_accepted_tokens_cpu[0] = 1

    def hold(self, *names: str) -> None:
        """Give these requests the rows of the batch, as for requests that are new in it."""
        self.input_batch = SimpleNamespace(
            req_ids=list(names),
            num_reqs=len(names),
            req_id_to_index={name: row for row, name in enumerate(names)},
            num_accepted_tokens_cpu=np.ones(4, dtype=np.int32),
        )


def step(
    cached: dict[str, int],
    tokens: dict[str, int],
    drafts: dict[str, int],
    new: dict[str, int] | None = None,
    **gone: Any,
) -> SimpleNamespace:
    """A ``SchedulerOutput``. ``cached``, ``new``: the computed tokens of each request."""
    return SimpleNamespace(
        finished_req_ids=gone.get("finished", ()),
        preempted_req_ids=gone.get("preempted"),
        scheduled_new_reqs=[
            SimpleNamespace(req_id=name, num_computed_tokens=computed)
            for name, computed in (new or {}).items()
        ],
        scheduled_cached_reqs=SimpleNamespace(
            req_ids=list(cached),
            num_computed_tokens=list(cached.values()),
            resumed_req_ids=gone.get("resumed", set()),
        ),
        num_scheduled_tokens=tokens,
        scheduled_spec_decode_tokens={name: [0] * count for name, count in drafts.items()},
    )


def told(states: StatesOfEarlierStage, runner: Runner, scheduled: Any) -> list[int]:
    """The number of each row, which the runner and its batch must have alike."""
    states.note(runner, scheduled)
    runner.hold(*scheduled.num_scheduled_tokens)
    states.restore(runner)
    count = runner.input_batch.num_reqs
    found = runner.num_accepted_tokens.np[:count].tolist()
    assert runner.input_batch.num_accepted_tokens_cpu[:count].tolist() == found
    return found


def test_numbers_of_requests_in_any_row_and_behind_steps_without_them() -> None:
    states, runner = StatesOfEarlierStage(), Runner()
    assert told(states, runner, step({}, {"a": 5, "b": 2}, {}, new={"a": 0, "b": 6})) == [1, 1]
    # ``b`` sits out. A prompt has no drafts.
    assert told(states, runner, step({"a": 5}, {"a": 4}, {"a": 3})) == [1]
    # Two of three drafts of ``a`` were right, in another row.
    both = step({"b": 8, "a": 8}, {"b": 3, "a": 4}, {"b": 2, "a": 3})
    assert told(states, runner, both) == [1, 3]
    # No draft of ``b``, all of ``a``; a step without drafts follows.
    assert told(states, runner, step({"a": 12, "b": 9}, {"a": 1, "b": 1}, {})) == [4, 1]
    assert told(states, runner, step({"a": 13}, {"a": 1}, {})) == [1]


@pytest.mark.parametrize("gone", ["finished", "preempted", "resumed"])
def test_requests_that_begin_again_go_on_from_their_only_state(gone: str) -> None:
    states, runner = StatesOfEarlierStage(), Runner()
    told(states, runner, step({}, {"a": 4}, {"a": 3}, new={"a": 5}))
    if gone != "resumed":
        states.note(runner, step({}, {}, {}, **{gone: {"a"}}))
    resumed = {"resumed": {"a"}} if gone == "resumed" else {}
    assert told(states, runner, step({"a": 8}, {"a": 1}, {}, **resumed)) == [1]


def test_states_at_ends_of_blocks_are_copied_for_the_last_steps() -> None:
    states, runner = StatesOfEarlierStage(), Runner("align")
    prompts = {"a": BLOCK, "b": 2, "c": BLOCK - 1}
    told(states, runner, step({}, {"a": 4, "b": 4, "c": 2}, {"a": 3, "b": 3, "c": 1}, new=prompts))
    runner.mamba_state_idx = {"a": 1, "b": 0, "c": 1}
    # All drafts of ``a`` were right, and one of ``b``; no block ends.
    both = step({"a": BLOCK + 4, "b": 4}, {"a": 1, "b": 4}, {"b": 3})
    assert told(states, runner, both) == [4, 2]
    assert not runner.copied
    # ``c`` sat out. It has reached the end of its first block with the token before its draft.
    rows = step({"c": BLOCK + 1, "b": 6}, {"c": 1, "d": 3, "b": 1}, {}, new={"d": 0})
    # vLLM's kernel writes 1 to the row of a state that it moved within its block.
    assert told(states, runner, rows) == [1, 1, 2]
    columns, scheduled, computed, drafts = runner.copied.pop()
    assert (columns, drafts) == ([1, 0, 0], [1, 0, 3])
    assert (scheduled, computed) == ([2, 1, 4], [BLOCK - 1, 0, 4])


def test_a_target_without_states_keeps_nothing() -> None:
    states, runner = StatesOfEarlierStage(), Runner(hybrid=False)
    assert told(states, runner, step({}, {"a": 4}, {"a": 3}, new={"a": 5})) == [1]
    assert told(states, runner, step({"a": 8}, {"a": 1}, {})) == [1]

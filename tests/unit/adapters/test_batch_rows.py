# SPDX-License-Identifier: Apache-2.0
"""Rows of a batch: requests of padding, rows that go on from a verification, states of a stage."""

import sys
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from mkv_ascend.adapters.common import batch_rows
from mkv_ascend.adapters.common.batch_rows import StatesOfEarlierStage, name_rows, verifying_rows


def runner_of(ends, *, mla=False):
    """A batch whose requests end at these tokens, of a runner that adds one as vllm-ascend's."""
    starts = SimpleNamespace(np=np.array([0, *ends, 0, 0]))

    def add(query_start_loc, tokens, requests, count):
        assert query_start_loc is starts
        assert count <= requests
        starts.np[requests + 1] = tokens
        return requests + 1

    return SimpleNamespace(
        vllm_config=object(),
        model_config=SimpleNamespace(use_mla=mla),
        query_start_loc=starts,
        _pad_query_start_loc_for_fia=add,
    )


@pytest.mark.parametrize(
    ("shares", "mla", "asked", "requests"),
    [
        (True, False, {"num_tokens": 3, "num_tokens_padded": 4}, 2),
        (True, False, {"num_tokens": 3, "num_tokens_padded": 4, "num_reqs_padded": 1}, 2),
        (True, False, {"num_tokens": 3, "num_tokens_padded": 3}, None),
        (True, False, {"num_tokens": 3}, None),
        (False, False, {"num_tokens": 3, "num_tokens_padded": 4}, None),
        # Its kernels are given lengths of queries in another way.
        (True, True, {"num_tokens": 3, "num_tokens_padded": 4}, None),
        (
            True,
            False,
            {"num_tokens": 3, "num_tokens_padded": 4, "for_cudagraph_capture": True},
            None,
        ),
    ],
)
def test_tokens_of_no_request_get_one(shares, mla, asked, requests, monkeypatch):
    host = SimpleNamespace(enable_sp=lambda _config: shares)
    monkeypatch.setitem(sys.modules, "vllm_ascend.utils", host)
    runner, given = runner_of([3], mla=mla), {"num_reqs": 1, **asked}
    batch_rows.cover_padding(runner, given)
    assert given == {"num_reqs": 1, **asked, **({} if requests is None else {"num_reqs_padded": 2})}
    assert runner.query_start_loc.np.tolist() == ([0, 3, 4, 0] if requests else [0, 3, 0, 0])


@dataclass
class Dense:
    """vllm-ascend's metadata of dense layers, as far as requests of padding change it."""

    attn_state: Any = field(default_factory=lambda: SimpleNamespace(name="ChunkedPrefill"))
    actual_seq_lengths_q: list[int] = field(default_factory=lambda: [2, 3])
    seq_lens: torch.Tensor = field(default_factory=lambda: torch.tensor([7, 9]))
    seq_lens_list: list[int] = field(default_factory=lambda: [7, 9])
    block_tables: torch.Tensor = field(default_factory=lambda: torch.tensor([[4, 5], [6, 0]]))


def config_of(*, shares_experts=True, shares_keys=1):
    parallel = SimpleNamespace(
        enable_expert_parallel=shares_experts,
        decode_context_parallel_size=shares_keys,
        prefill_context_parallel_size=1,
    )
    return SimpleNamespace(parallel_config=parallel)


@pytest.fixture
def dense(monkeypatch):
    host = SimpleNamespace(AscendMetadata=Dense)
    monkeypatch.setitem(sys.modules, "vllm_ascend.attention.attention_v1", host)


@pytest.mark.parametrize(
    ("state", "ends"), [("ChunkedPrefill", [2, 3, 6]), ("DecodeOnly", [2, 3, 4, 5, 6])]
)
@pytest.mark.usefixtures("dense")
def test_rows_behind_the_requests_get_one_of_padding(state, ends):
    """One for each row of a decode, whose requests have one token each; layers may share it."""
    given, other = Dense(SimpleNamespace(name=state)), SimpleNamespace(actual_seq_lengths_q=[2])
    metadata = {"layers.0": given, "layers.1": given, "layers.2": other, "layers.3": None}
    made = batch_rows.cover_rows(config_of(), metadata, 6)
    assert list(made) == list(metadata)
    shared, added = made["layers.0"], len(ends) - 2
    assert made["layers.1"] is shared
    assert made["layers.2"] is other
    assert shared.actual_seq_lengths_q == ends
    assert shared.seq_lens_list == shared.seq_lens.tolist() == [7, 9, *[1] * added]
    assert shared.block_tables.tolist() == [[4, 5], [6, 0], *[[0, 0]] * added]
    # What other passes may read stays as it was.
    assert given.actual_seq_lengths_q == [2, 3]


@pytest.mark.parametrize(
    ("config", "rows"),
    [
        (config_of(), 3),
        (config_of(shares_experts=False), 6),
        # Lengths of a rank's share of the keys are kept elsewhere.
        (config_of(shares_keys=2), 6),
    ],
)
@pytest.mark.usefixtures("dense")
def test_nothing_is_added_where_nothing_is_read(config, rows):
    metadata = Dense()
    assert batch_rows.cover_rows(config, {"layers.0": metadata}, rows)["layers.0"] is metadata


@pytest.mark.usefixtures("dense")
def test_metadata_of_parts_of_a_batch_is_left_alone():
    parts = [{"layers.0": Dense()}]
    assert batch_rows.cover_rows(config_of(), parts, 6) is parts


@pytest.mark.parametrize(
    ("drafts", "accepted", "computed", "found"),
    [
        (2, 1, 9, 2),  # with drafts to verify
        (0, 1, 9, -1),  # with none, now and before
        (0, 2, 9, 0),  # one draft was accepted, and there are none now
        (0, 4, 9, 0),  # three were
        (3, 1, 4, -1),  # the last token of a prompt, with "drafts" behind it
        (0, 3, 4, -1),  # that one, with what another request left in its row
        (2, 1, 5, 2),  # the first step behind a prompt
        (0, 1, 5, -1),  # that one, without drafts
    ],
)
def test_rows_that_go_on_from_another_column_than_the_first(
    drafts: int, accepted: int, computed: int, found: int
) -> None:
    """Behind a prompt of 5 tokens."""
    rows = verifying_rows(*(np.array([each]) for each in (drafts, accepted, computed, 5)))
    assert rows.tolist() == [found]


def runner_of_rows(drafts: list[int], accepted: list[int]) -> Any:
    """Three rows that are past their prompts, in a batch of up to five."""
    return SimpleNamespace(
        speculative_config=object(),
        model_config=SimpleNamespace(is_hybrid=True),
        num_decode_draft_tokens=SimpleNamespace(np=np.array(drafts)),
        num_accepted_tokens=SimpleNamespace(np=np.array(accepted)),
        input_batch=SimpleNamespace(
            num_computed_tokens_cpu=np.full(5, 9), num_prompt_tokens=np.full(5, 5)
        ),
    )


@pytest.mark.parametrize("least", [0, 1])
def test_rows_that_verified_are_named_beside_those_that_verify(least: int) -> None:
    made = runner_of_rows([2, -1, -1, -1, -1], [1, 3, 1, 1, 1])
    asked = {"num_reqs": 3, "num_scheduled_tokens": {}, "use_spec_decode": True}
    name_rows(made, asked, least)
    assert made.num_decode_draft_tokens.np.tolist() == [2, least, -1, -1, -1]
    assert asked["use_spec_decode"]


def test_numbers_of_an_earlier_step_are_forgotten() -> None:
    """Then no row has drafts, and the buffer is as it was left."""
    made = runner_of_rows([2, 2, 2, 2, 2], [1, 1, 1, 1, 1])
    asked = {"num_reqs": 3, "num_scheduled_tokens": {}, "use_spec_decode": False}
    name_rows(made, asked, 1)
    assert made.num_decode_draft_tokens.np.tolist() == [-1] * 5
    assert not asked["use_spec_decode"]


BLOCK = 8
DRAFTS = 3


def buffer() -> SimpleNamespace:
    return SimpleNamespace(gpu=torch.full((4,), -1, dtype=torch.int32))


class RunnerOfStage:
    """What is read and written of vllm-ascend's."""

    def __init__(self, mode: str = "none", hybrid: bool = True) -> None:
        self.model_config = SimpleNamespace(is_hybrid=hybrid)
        self.cache_config = SimpleNamespace(mamba_cache_mode=mode)
        self.device, self.num_spec_tokens = "cpu", DRAFTS
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


def told(states: StatesOfEarlierStage, runner: RunnerOfStage, scheduled: Any) -> list[int]:
    """The number of each row, which the runner and its batch must have alike."""
    states.note(runner, scheduled)
    runner.hold(*scheduled.num_scheduled_tokens)
    states.restore(runner)
    count = runner.input_batch.num_reqs
    found = runner.num_accepted_tokens.np[:count].tolist()
    assert runner.input_batch.num_accepted_tokens_cpu[:count].tolist() == found
    return found


def test_numbers_of_requests_in_any_row_and_behind_steps_without_them() -> None:
    states, runner = StatesOfEarlierStage(), RunnerOfStage()
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
    states, runner = StatesOfEarlierStage(), RunnerOfStage()
    told(states, runner, step({}, {"a": 4}, {"a": 3}, new={"a": 5}))
    if gone != "resumed":
        states.note(runner, step({}, {}, {}, **{gone: {"a"}}))
    resumed = {"resumed": {"a"}} if gone == "resumed" else {}
    assert told(states, runner, step({"a": 8}, {"a": 1}, {}, **resumed)) == [1]


def test_states_at_ends_of_blocks_are_copied_for_the_last_steps() -> None:
    states, runner = StatesOfEarlierStage(), RunnerOfStage("align")
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
    states, runner = StatesOfEarlierStage(), RunnerOfStage(hybrid=False)
    assert told(states, runner, step({}, {"a": 4}, {"a": 3}, new={"a": 5})) == [1]
    assert told(states, runner, step({"a": 8}, {"a": 1}, {})) == [1]

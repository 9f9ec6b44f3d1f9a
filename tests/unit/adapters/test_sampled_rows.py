# SPDX-License-Identifier: Apache-2.0
"""Each row of a verify step has what its own request asks for, and nothing of another one's."""

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from vllm import SamplingParams
from vllm.v1.sample.logits_processor import MinTokensLogitsProcessor

from mkv_ascend.adapters.common.patches.sampled_rows import (
    draw_for_drafts,
    gather_values,
    hold_back_stop_tokens,
)

K, TOKENS, STOP = 3, 8, 5
DRAFTED = -1
"""Stands for a draft that vLLM counts as a token before it is verified."""


@pytest.fixture(autouse=True)
def _pageable_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM 0.30.0 stages what it copies in pinned memory, which needs a device."""
    monkeypatch.setattr("vllm.utils.torch_utils.PIN_MEMORY", False, raising=False)


class Batch:
    """Requests of ``least`` and ``tokens``; the first placeholder of each answer was accepted."""

    def __init__(self, least: list[int], tokens: list[list[int]]) -> None:
        self.req_ids = [str(row) for row in range(len(least))]
        self.req_output_token_ids = tokens
        self.sampling_metadata = SimpleNamespace(output_token_ids=[])
        processor = MinTokensLogitsProcessor(SimpleNamespace(), torch.device("cpu"), False)
        self.logitsprocs = SimpleNamespace(non_argmax_invariant=[processor])

    def update_async_output_token_ids(self) -> None:
        for tokens in self.sampling_metadata.output_token_ids:
            if DRAFTED in tokens:
                first = tokens.index(DRAFTED)
                tokens[first:] = [7]


def rows_held_back(
    least: list[int], tokens: list[list[int]]
) -> tuple[list[list[bool]], list[bool]]:
    """For each request: rows of its drafts without the stop token, and whether its last row is."""
    batch = Batch(least, tokens)
    requests = {
        request: SimpleNamespace(
            sampling_params=SamplingParams(min_tokens=count, max_tokens=50, stop_token_ids=[STOP])
        )
        for request, count in zip(batch.req_ids, least, strict=True)
    }
    runner: Any = SimpleNamespace(input_batch=batch, requests=requests, num_spec_tokens=K)
    drafts = [K] * len(least)
    hold_back_stop_tokens(runner, SimpleNamespace(num_draft_tokens=drafts))
    (processor,) = batch.logitsprocs.non_argmax_invariant
    verified = processor.apply_with_spec_decode(torch.zeros(K * len(least), TOKENS), drafts)
    last = processor.apply(torch.zeros(len(least), TOKENS))
    held = verified[:, STOP].isinf().reshape(-1, K)
    return held.tolist(), last[:, STOP].isinf().tolist()


@pytest.mark.parametrize(
    ("least", "tokens", "held", "last"),
    [
        (0, [7] * 2, [False, False, False], False),
        (4, [7] * 4, [False, False, False], False),
        (6, [7] * 4, [True, True, False], False),
        (7, [7] * 4, [True, True, True], False),
        (8, [7] * 4, [True, True, True], True),
        # One of three drafts was accepted: four tokens, not six.
        (6, [7] * 3 + [DRAFTED] * 3, [True, True, False], False),
        (8, [7] * 3 + [DRAFTED] * 3, [True, True, True], True),
    ],
)
def test_rows_before_the_minimum_have_no_stop_token(
    least: int, tokens: list[int], held: list[bool], last: bool
) -> None:
    assert rows_held_back([least], [tokens]) == ([held], [last])
    # Beside a request that has nothing to wait for, and one that has only begun.
    of_all, last_of_all = rows_held_back([0, least, 20], [[7], list(tokens), [7] * 2])
    assert of_all == [[False] * K, held, [True] * K]
    assert last_of_all == [False, last, True]


def test_nothing_is_read_where_no_request_waits() -> None:
    batch: Any = Batch([0, 3], [[7], [7] * 6])
    wanted = {
        str(row): SimpleNamespace(sampling_params=SamplingParams(min_tokens=least, max_tokens=9))
        for row, least in enumerate([0, 3])
    }
    hold_back_stop_tokens(
        SimpleNamespace(input_batch=batch, requests=wanted, num_spec_tokens=K), None
    )
    assert batch.sampling_metadata.output_token_ids == []


@pytest.mark.parametrize("drafts", [[3, 3, 3], [3, 0, 1], [0, 2, 0], [1]])
@pytest.mark.parametrize("odd", [float("nan"), float("inf"), -float("inf"), 1e-45, 0.0])
def test_a_row_has_the_value_of_its_request_and_of_no_other(drafts: list[int], odd: float) -> None:
    values = torch.tensor([odd, 0.5, 0.0, 2.0][: len(drafts)])
    ends = torch.tensor(drafts, dtype=torch.int32).cumsum(0)
    expanded = torch.full((sum(drafts),), -7.0)
    gather_values(lambda *_: None, expanded, values, ends, 0, 1, MAX_NUM_TOKENS=8)
    expected = [
        1.0 if value == 0.0 else value
        for value, count in zip(values.tolist(), drafts, strict=True)
        for _ in range(count)
    ]
    torch.testing.assert_close(expanded, torch.tensor(expected), equal_nan=True, rtol=0, atol=0)


def test_whole_numbers_stay_whole() -> None:
    values = torch.tensor([2**24 + 1, 5], dtype=torch.int32)
    expanded = torch.empty(3, dtype=torch.int32)
    gather_values(lambda *_: None, expanded, values, torch.tensor([1, 3]), 0, 0)
    assert expanded.tolist() == [2**24 + 1, 5, 5]


def test_a_request_without_drafts_draws_nothing_in_a_verify_step() -> None:
    @dataclass
    class Sampling:
        generators: dict[int, str]

    def original(*args: Any, **named: Any) -> Any:
        assert named == {"use_block_verify": False}
        return args[6].generators

    sampling = Sampling({0: "a", 1: "b", 3: "c"})
    args = (3, [2, 0, 1, 3], None, None, None, None, sampling, "npu")
    drawn: Any = draw_for_drafts(original, *args, use_block_verify=False)  # type: ignore[arg-type]
    assert drawn == {0: "a", 3: "c"}
    assert sampling.generators == {0: "a", 1: "b", 3: "c"}

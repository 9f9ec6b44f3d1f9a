# SPDX-License-Identifier: Apache-2.0
"""Drafts with recurrent layers: their states follow what is accepted.

Qwen3-Next has the gated delta rule, Granite-4 Mamba2, LFM2 short convolutions; all have attention.

Output tokens are the target's whatever the draft does, so every draft token is compared with what
Hugging Face's run of the draft says after the accepted context.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support import engine, hosts, speculation
from tests.support.models.random_models import random_model
from tests.support.pairs import (
    assert_drafts_are_the_drafts_own,
    assert_greedy_tokens_of_reference,
    scenario,
    text_prompts,
)
from tests.support.stock import each_runner
from tests.support.tiny_models import model_directory

TARGET, DRAFT = "qwen3_next", "qwen3_next_draft"
TRITON = {"EMULATED_NPU_TRITON": "1"}
K_OF_MANY = 5


def case(draft: str, lengths: tuple[int, ...], target: str = TARGET, **fields: Any) -> Any:
    """Prompts of text and of these many tokens of it."""
    long = [token for prompt in text_prompts(model_directory(target)) for token in prompt]
    return scenario(
        target,
        draft,
        **{
            "prompts": [long[length : 2 * length] for length in lengths],
            "max_tokens": 24,
            **fields,
        },
    )


def assert_right(case: Any, result: Any) -> None:
    assert_greedy_tokens_of_reference(case, result)
    assert_drafts_are_the_drafts_own(case, result)


@pytest.mark.host("0.23", cases=["*-v1"])
@pytest.mark.nightly("other cases of it stay", cases=["*-v2"])
@each_runner
@pytest.mark.parametrize("name", [TARGET, "granite4", "lfm2"])
def test_a_model_accepts_all_of_its_own_drafts(name: str, runner: dict[str, str]) -> None:
    """Also after prompts of one token, and in chunks."""
    own = case(
        name,
        (1, 2, 40, 130, 5),
        target=name,
        num_speculative_tokens=4,
        engine={"max_num_batched_tokens": 48},
        environment=runner,
    )
    result = engine.run(own)
    assert_right(own, result)
    assert result.accepted_per_position == [result.num_drafts] * own.num_speculative_tokens
    assert "2 layers keep a recurrent state, in 1 KV groups: one pass more" in result.log


@pytest.mark.host("0.23")
def test_a_model_without_prediction_layers_drafts_as_a_model_if_no_method_is_given() -> None:
    """vLLM would make an MTP head of every Qwen3-Next."""
    plain = case(DRAFT, (1, 40, 130), target="qwen3_moe", speculative={"method": None})
    result = engine.run(plain)
    assert_right(plain, result)
    assert "1 layers keep a recurrent state" in result.log


@pytest.mark.host("0.23")
def test_states_in_several_kv_groups(tmp_path: Path) -> None:
    """Metadata is built once for all of them; rows of unlike lengths in one batch."""
    model = random_model(tmp_path, value_heads=4, kv_heads=1)
    prompts = [list(range(5, 5 + length)) for length in (5, 9, 40)]
    several = engine.Scenario(
        model=model,
        draft=model,
        prompts=prompts,
        max_tokens=8,
        record_drafts=True,
        engine={"long_prefill_token_threshold": 4},
    )
    result = engine.run(several)
    assert_right(several, result)
    assert result.num_accepted == result.num_draft_tokens
    assert "3 layers keep a recurrent state, in 3 KV groups" in result.log
    assert "one pass more, and 2 times metadata more" in result.log


@pytest.mark.host("0.23", cases=["v1"])
@pytest.mark.nightly("other cases of it stay", cases=["v2"])
@each_runner
def test_states_follow_what_is_accepted(runner: dict[str, str]) -> None:
    """The first two requests fill all blocks; when one of them grows, the other has to yield."""
    # vLLM 0.30.0 would take hits, for which the target keeps states in blocks of their own.
    blocks = {
        "num_gpu_blocks_override": 1 + 2 * (1 + K_OF_MANY + 1),
        "enable_prefix_caching": False,
    }
    drafted = case(
        DRAFT,
        (120, 117, 1, 33),
        num_speculative_tokens=K_OF_MANY,
        max_tokens=40,
        engine=blocks,
        environment=runner,
        mkv_ascend={"layout": {"shared_pages": False}},
    )
    result = engine.run(drafted)
    assert_right(drafted, result)
    assert all(0 < count < result.num_drafts for count in result.accepted_per_position)
    assert result.preemptions > 0


@pytest.mark.host("0.23", cases=["v1"])
@pytest.mark.nightly("other cases of it stay", cases=["v2"])
@each_runner
def test_states_of_target_and_draft_on_several_ranks(runner: dict[str, str]) -> None:
    """Each rank has half of the heads of Mamba2 and of the gated delta rule, and of all experts."""
    spread = case(
        DRAFT,
        (5, 40, 90),
        target="granite4",
        max_tokens=12,
        num_speculative_tokens=2,
        engine={"tensor_parallel_size": 2},
        environment=runner,
    )
    result = engine.run(spread)
    assert_right(spread, result)
    assert all(0 < count < result.num_drafts for count in result.accepted_per_position)


@pytest.mark.host("0.23")
def test_asynchronous_scheduling_accepts_what_the_reference_does() -> None:
    ahead = case(
        DRAFT,
        (5, 40, 90),
        num_speculative_tokens=1,
        record_drafts=False,
        engine={"async_scheduling": True},
    )
    result = engine.run(ahead)
    assert_greedy_tokens_of_reference(ahead, result)
    drafter = speculation.DraftModel(Path(str(ahead.draft)))
    expected = [
        speculation.draft_and_verify(Path(ahead.model), drafter, prompt, 1, ahead.max_tokens)
        for prompt in ahead.prompts
    ]
    assert all(output.decided for output in expected)
    accepted = zip(*(output.accepted_per_position for output in expected), strict=True)
    assert result.accepted_per_position == [sum(counts) for counts in accepted]


@pytest.mark.host("0.23", cases=["*-v1"])
@pytest.mark.nightly("other cases of it stay", cases=["*-limits1-v2", "*-limits3-v2"])
@each_runner
@pytest.mark.parametrize(
    ("target", "draft", "limits"),
    [
        # Chunks of prompts have any length up to K + 1, several of them in one step. One of
        # three rows begins a request with K + 1 tokens, in blocks where another one left its
        # states. Two verify. No graph may take that for a verify step.
        (
            "qwen3_moe",
            DRAFT,
            {
                "long_prefill_token_threshold": 3,
                "max_num_seqs": 3,
                "num_gpu_blocks_override": 16,
            },
        ),
        ("llama_target", "lfm2", {"long_prefill_token_threshold": 3}),
        # Copies of its states are a kernel in Triton.
        pytest.param(
            "llama_target",
            "kimi_linear",
            {"long_prefill_token_threshold": 3},
            marks=hosts.only_on("vllm_ascend_0_30", "0.23.0 keeps no state of a draft token there"),
            id="kimi delta attention",
        ),
        # The longest request reaches the maximum length inside a proposal.
        (TARGET, "granite4", {"max_num_batched_tokens": 24, "max_model_len": 64}),
    ],
)
def test_targets_without_states_and_with_others(
    target: str, draft: str, limits: dict[str, Any], runner: dict[str, str]
) -> None:
    """Eagerly beside prompts, else in graphs, for 1, 3 and 6 requests."""
    k = 2
    apart = case(
        draft,
        (5, 9, 1, 40, 33),
        target=target,
        num_speculative_tokens=k,
        engine=limits,
        graphs="FULL_DECODE_ONLY",
        capture_sizes=tuple(requests * (k + 1) for requests in (1, 3, 6)),
        environment={**runner, **TRITON} if draft == "kimi_linear" else runner,
    )
    result = engine.run(apart)
    assert_right(apart, result)
    assert result.draft_replays > 5
    assert 0 < result.num_accepted < result.num_draft_tokens

# SPDX-License-Identifier: Apache-2.0
"""``drafting.window``: the draft attends to its last tokens, and blocks before them are given back.

The draft of the plain loops has the window as a mask in plain torch. Blocks are counted from the
scheduler's own pool and managers.
"""

import pytest

from tests.emulated.drafting import probes
from tests.support import engine, programs, reference, speculation
from tests.support.draft_windows import WindowedDraft
from tests.support.loop_judgement import (
    assert_reference,
    decided_outputs,
    drafter_of,
    loops_and_engine,
)
from tests.support.marks import needs_float32
from tests.support.pairs import assert_greedy_tokens_of_reference, prompts_of, scenario
from tests.support.prompts import deck_prompts
from tests.support.stock import each_runner
from tests.support.tiny_models import model_directory

BLOCK = 128
pytestmark = needs_float32


def window(tokens):
    return {"drafting": {"window": tokens}}


def kinds(result):
    return [row["kind"] for row in result.layers if row["role"] == "draft"]


@pytest.mark.host("0.23", cases=["*-FULL_AND_PIECEWISE-v1", "*-FULL_DECODE_ONLY-v1"])
@pytest.mark.nightly(
    "other cases of it stay", cases=["*-FULL_AND_PIECEWISE-v2", "*-None-v2", "*-mtp-*"]
)
@each_runner
@pytest.mark.parametrize(
    ("target", "draft", "method", "k", "graphs"),
    [
        ("llama_target", "llama_draft", "draft_model", 3, None),
        ("gpt_oss", "gpt_oss_eagle3", "eagle3", 3, "FULL_DECODE_ONLY"),
        ("qwen3_next_mtp", "qwen3_next_mtp", "mtp", 3, None),
        # Its window of 32 tokens becomes one of 12, too.
        ("gpt_oss", "gpt_oss_draft", "draft_model", 3, "FULL_AND_PIECEWISE"),
    ],
)
def test_proposals_and_acceptance_are_those_of_a_masked_draft(
    target, draft, method, k, graphs, runner
):
    result = assert_reference(
        target,
        draft,
        method,
        k,
        runner,
        mkv_ascend=window(12),
        graphs=graphs,
        capture_sizes=(k + 1, 2 * (k + 1)),
    )
    assert set(kinds(result)) == {"sliding_window"}
    assert (result.draft_replays > 5) == (graphs is not None)


@pytest.mark.host("0.23")
def test_a_window_longer_than_the_context_changes_nothing():
    pair = ("llama_target", "llama_draft", "draft_model", 3)
    outputs, result = loops_and_engine(*pair, mkv_ascend=window(400))
    directory = model_directory("llama_target")
    plain = decided_outputs(directory, drafter_of(directory, *pair[1:]), 3)
    assert outputs == [output for _, output in plain]
    assert kinds(result) == ["sliding_window"] * 2
    proposals = [proposal for output in outputs for proposal in output.proposals]
    assert len(result.proposals) == len(proposals)
    assert all(proposal in proposals for proposal in result.proposals)


@pytest.mark.host("0.23", cases=["*-v1"])
@pytest.mark.nightly("other cases of it stay", cases=["*-v2"])
@each_runner
@pytest.mark.parametrize(
    ("target", "draft", "method"),
    [
        ("llama_target", "llama_draft", "draft_model"),
        # As without a window: all decks begin with one token, see test_prefix_hits_of_heads.py.
        ("gpt_oss", "gpt_oss_eagle3", "eagle3"),
    ],
)
def test_prefix_hits(target, draft, method, runner):
    """A hit needs the draft's keys of a window alone, and is no shorter than without one."""
    directory, k = model_directory(target), 3
    (stem,) = prompts_of(target, [3 * BLOCK])
    decks = [reference.token_ids(directory, deck)[1:] for deck in deck_prompts(3, letters=8)]
    case = scenario(
        target,
        draft,
        prompts=[[*stem, *deck] for deck in decks],
        max_tokens=24,
        num_speculative_tokens=k,
        speculative={"method": method},
        mkv_ascend=window(40),
        engine={"enable_prefix_caching": True, "max_num_seqs": 1, "max_num_batched_tokens": 256},
        graphs="FULL_DECODE_ONLY",
        capture_sizes=(k + 1,),
        environment=runner,
    )
    result = engine.run(case)
    assert result.cached_tokens == [0, *[len(stem)] * 2]
    assert_greedy_tokens_of_reference(case, result)
    report = reference.judge(
        WindowedDraft(drafter_of(directory, draft, method, k), 40).rows, result.proposals
    )
    assert report.checked == k * len(result.proposals) > 30
    assert not report.wrong, "\n".join(map(str, report.wrong[:5]))


def decided(drafter, lengths, k, max_tokens):
    """The first prompt, of one of these lengths, that no near tie decides; and its decoding."""
    target = model_directory("llama_target")
    for prompt in prompts_of("llama_target", lengths):
        output = speculation.draft_and_verify(target, drafter, prompt, k, max_tokens)
        if output.decided:
            return prompt, output
    raise AssertionError("near ties everywhere")


@pytest.mark.host("0.23", cases=["True-v1"])
@pytest.mark.nightly("other cases of it stay", cases=["False-*"])
@each_runner
@pytest.mark.parametrize("asynchronous", [False, True])
def test_blocks_behind_the_window_are_given_back(asynchronous, runner):
    """A request holds W computed tokens and a block at most, beside those that are under way."""
    tokens, k, max_tokens = 200, 3, 16
    drafter = WindowedDraft(speculation.DraftModel(model_directory("llama_draft")), tokens)
    chosen = [decided(drafter, range(start, start + 8), k, max_tokens) for start in (700, 330)]
    case = scenario(
        "llama_target",
        "llama_draft",
        prompts=[prompt for prompt, _ in chosen],
        max_tokens=max_tokens,
        num_speculative_tokens=k,
        mkv_ascend=window(tokens),
        engine={
            "async_scheduling": asynchronous,
            "enable_prefix_caching": False,
            "max_model_len": 1024,
            "max_num_batched_tokens": 192,
        },
    )
    limits = {**case.engine_arguments(), "async_scheduling": asynchronous}
    asked = {"engine": limits, "prompts": case.prompts, "max_tokens": max_tokens}
    answer = programs.answer_of(probes.draft_windows, asked, runner)
    assert answer["tokens"] == [output.tokens for _, output in chosen]
    assert answer["accepted"] == sum(sum(output.accepted_per_position) for _, output in chosen)
    rows = answer["rows"]
    assert any(row["in_flight"] for row in rows) == asynchronous
    assert max(row["computed"] for row in rows) > 700
    for row in rows:
        assert row["used"] == row["counted"], row
        first, last = row["held"][0], row["held"][-1]
        assert row["held"] == list(range(first, last + 1)), row
        # Whole blocks before the window of the first token that may be asked for again.
        done = row["computed"] - row["in_flight"]
        assert first == max(0, done - tokens + 1) // BLOCK, row
        assert done - first * BLOCK < tokens + BLOCK, row
        ahead = row["computed"] + row["scheduled"]
        assert ahead <= (last + 1) * BLOCK < ahead + k + 1 + BLOCK, row

# SPDX-License-Identifier: Apache-2.0
"""Drafts whose layers lie in several KV groups: tokens, acceptance, and every draft token.

Equal tokens alone would prove nothing, since the target corrects any draft. A model that drafts for
itself must always be accepted. Every token of another draft must be its own, accepted or not.
"""

import dataclasses

import pytest

from tests.emulated.drafting import probes
from tests.support import engine, programs, reference, speculation
from tests.support.pairs import (
    assert_drafted_in_parallel,
    assert_drafts_are_the_drafts_own,
    assert_greedy,
    assert_greedy_tokens_of_reference,
    backends,
    kv_groups,
    prompts_of,
    run_greedy,
    scenario,
    text_prompts,
    with_config,
)
from tests.support.stock import each_runner
from tests.support.tiny_models import model_directory


def run_and_judge(case):
    result = run_greedy(case)
    if case.record_drafts:
        assert_drafts_are_the_drafts_own(case, result)
    return result


def assert_always_accepted(case, result):
    assert result.num_drafts > 0
    assert result.accepted_per_position == [result.num_drafts] * case.num_speculative_tokens


@pytest.mark.host("0.23", cases=["v1"])
@pytest.mark.nightly("other cases of it stay", cases=["v2"])
@each_runner
def test_a_model_with_windows_drafting_for_itself_is_always_accepted(runner):
    """Prefills in chunks, prefix hits, requests that end inside a proposal."""
    case = scenario(
        "gemma3",
        "gemma3",
        num_speculative_tokens=5,
        max_tokens=30,
        engine={"max_num_batched_tokens": 64, "max_num_seqs": 4},
        repeats=2,
        environment=runner,
    )
    result = run_and_judge(case)
    assert max(result.cached_tokens) >= 128
    assert kv_groups(result, "draft") == {0, 1}
    assert_always_accepted(case, result)
    assert "The draft reads 2 KV groups" in result.log
    assert "A proposal builds attention metadata 2 times" in result.log


@pytest.mark.host("0.23")
@pytest.mark.parametrize(("model", "k"), [("gpt_oss", 2), ("gemma3_alternating", 3)])
def test_sixteen_requests_of_mixed_lengths_drafting_for_themselves(model, k):
    """Sinks and experts; eight layers of alternating kinds. 16 requests run at once."""
    lengths = [2, 5, 9, 17, 31, 33, 48, 64, 65, 90, 127, 128, 129, 160, 200, 257]
    case = scenario(
        model,
        model,
        prompts=prompts_of(model, lengths),
        max_tokens=16,
        num_speculative_tokens=k,
        engine={"max_num_seqs": 16, "max_num_batched_tokens": 256},
    )
    result = run_and_judge(case)
    assert_always_accepted(case, result)
    assert len(kv_groups(result, "draft")) > 1


@pytest.mark.core(cases=["1-*"])
@pytest.mark.host("0.23")
@pytest.mark.parametrize(
    ("num_speculative_tokens", "full_attention"),
    [(1, "fused_infer_attention"), (4, "flash_attention_3")],
)
def test_a_draft_in_more_groups_than_its_target(num_speculative_tokens, full_attention):
    """With one backend for all of its layers, and with one for each kind."""
    case = scenario(
        "llama_target",
        "gemma3",
        prompts=text_prompts(model_directory("llama_target"), 13),
        num_speculative_tokens=num_speculative_tokens,
        max_tokens=16,
        mkv_ascend={"attention": {"draft": {"full_attention": full_attention}}},
    )
    result = run_and_judge(case)
    assert kv_groups(result, "target") < kv_groups(result, "draft")
    assert backends(result)["draft"] == {"fused_infer_attention", full_attention}
    assert result.mean_acceptance_length > 1 + 0.6 * num_speculative_tokens**0.5


@pytest.mark.core
@each_runner
def test_preemption_with_asynchronous_scheduling(runner):
    """The host does not even know the target's lengths when the next step is prepared."""
    case = scenario(
        "gemma3",
        "gemma3",
        record_drafts=False,
        prompts=prompts_of("gemma3", [250, 248, 246, 245, 244, 243]),
        engine={"async_scheduling": True, "num_gpu_blocks_override": 20},
        environment=runner,
    )
    result = run_and_judge(case)
    assert result.preemptions > 0
    assert_always_accepted(case, result)


@pytest.mark.host("0.23")
def test_tokens_drafted_in_parallel_over_several_groups(tmp_path):
    """Not trained for it, the draft is poor; its tokens must be its own all the same.

    Eagerly beside prompts, else in graphs, for 1, 3 and 6 of 8 requests.
    """
    mask = 5
    draft = with_config("gemma3", tmp_path, pard_token=mask)
    case = scenario(
        "gemma3",
        "gemma3",
        max_tokens=24,
        speculative={"parallel_drafting": True},
        graphs="FULL_DECODE_ONLY",
        capture_sizes=(4, 12, 24),
    )
    case = dataclasses.replace(case, draft=draft)
    result = engine.run(case)
    # The first of 24 tokens comes from the prompt, and a step accepts 4 at the most: there are 6
    # steps or more, and a proposal behind each but the last.
    assert case.num_speculative_tokens == 3
    assert result.draft_replays >= 5
    assert_greedy_tokens_of_reference(case, result)
    assert_drafted_in_parallel(draft, mask, result, case.num_speculative_tokens)


@pytest.mark.host("0.23")
def test_a_batch_without_padding_is_accepted_like_the_references():
    """The host knows the accepted tokens then, and rejected ones are not in the draft's batch."""
    k, target = 2, model_directory("llama_target")
    head = speculation.DraftHead(model_directory("llama_eagle"), target)
    prompts = prompts_of("llama_target", [150, 131, 40, 7])
    outputs = [speculation.draft_and_verify(target, head, prompt, k, 16) for prompt in prompts]
    case = scenario(
        "llama_target",
        "llama_eagle",
        prompts=prompts,
        max_tokens=16,
        num_speculative_tokens=k,
        speculative={"method": "eagle", "disable_padded_drafter_batch": True},
    )
    result = engine.run(case)
    assert all(output.decided for output in outputs)
    assert result.tokens == [output.tokens for output in outputs]
    assert result.accepted_per_position == [
        sum(output.accepted_per_position[position] for output in outputs) for position in range(k)
    ]


@each_runner
def test_aborted_requests_leave_the_others_as_they_were(runner):
    """Rows of the batch move up between two proposals, and new requests take their blocks."""
    prompts = prompts_of("gemma3", [150, 131, 40, 7, 90, 129, 33, 64])
    case = scenario("gemma3", "gemma3", record_drafts=False, prompts=prompts, max_tokens=20)
    aborts = {3: [1, 0], 5: [6]}
    request = {
        "engine": {**case.engine_arguments(), "async_scheduling": False, "max_num_seqs": 4},
        "prompts": prompts,
        "max_tokens": case.max_tokens,
        "aborts": aborts,
    }
    result = programs.answer_of(probes.abort, request, runner)
    gone = {number for numbers in aborts.values() for number in numbers}
    kept = [number for number in range(len(prompts)) if number not in gone]
    tokens = [result["tokens"][str(number)] for number in kept]
    assert_greedy(case.model, [prompts[number] for number in kept], tokens, case.max_tokens)
    assert result["accepted"] == [result["drafts"]] * case.num_speculative_tokens


def within(proposal, max_model_len):
    """The tokens of a proposal whose own position is one that a sequence may have."""
    room = max_model_len - (len(proposal.context) - 1)
    return dataclasses.replace(proposal, tokens=proposal.tokens[: max(room, 0)])


@pytest.mark.host("0.23")
def test_proposals_that_reach_the_maximum_length(tmp_path):
    """The draft's is shorter than the target's here; what is drafted before it must stay right.

    Its rotary tables end there, so an operator refuses positions behind it.
    """
    max_model_len, of_the_draft = 160, 152
    draft = with_config("gemma3", tmp_path, max_position_embeddings=of_the_draft)
    case = scenario(
        "gemma3",
        "gemma3",
        num_speculative_tokens=5,
        prompts=prompts_of("gemma3", [150, 143, 131, 99]),
        max_tokens=max_model_len,
        engine={"max_model_len": max_model_len},
    )
    case = dataclasses.replace(case, draft=draft)
    result = engine.run(case)
    for prompt, tokens in zip(case.prompts, result.tokens, strict=True):
        assert len(prompt) + len(tokens) == max_model_len
        assert_greedy(case.model, [prompt], [tokens], len(tokens))
    cut = [within(proposal, of_the_draft) for proposal in result.proposals]
    lengths = {len(proposal.tokens) for proposal in cut}
    assert {0, case.num_speculative_tokens} < lengths, "none passes the maximum half-way"
    report = reference.check_drafts(case.draft, [proposal for proposal in cut if proposal.tokens])
    assert not report.wrong, "\n".join(map(str, report.wrong[:5]))


@pytest.mark.host("0.23", cases=["v1"])
@each_runner
def test_proposals_where_vllm_shortens_requests_to_memory(runner):
    """With --max-model-len auto: block tables end where the longest request does, and so drafts."""
    longest = 3 * 128
    case = scenario(
        "gpt_oss",
        "gpt_oss_draft",
        prompts=prompts_of("gpt_oss", [longest - 32, 20]),
        max_tokens=32,
        # Three blocks of keys and one of a window for each model, and vLLM's own.
        engine={"max_model_len": -1, "num_gpu_blocks_override": 9, "max_num_seqs": 2},
        graphs="FULL_DECODE_ONLY",
        capture_sizes=(4, 8),
        environment=runner,
    )
    result = engine.run(case)
    assert f"Auto-fit max_model_len: reduced from 1024 to {longest}" in result.log
    assert_greedy_tokens_of_reference(case, result)
    cut = [within(proposal, longest) for proposal in result.proposals]
    assert {len(proposal.tokens) for proposal in cut} > {case.num_speculative_tokens}
    report = reference.check_drafts(case.draft, [proposal for proposal in cut if proposal.tokens])
    assert not report.wrong, "\n".join(map(str, report.wrong[:5]))
    assert result.draft_replays > 5


@pytest.mark.host("0.23")
def test_tokens_drafted_in_parallel_at_the_end_of_the_last_block(tmp_path):
    """The longest sequence fills its blocks, and rows of masks are behind it: in no block.

    They write to no slot. Operators take their number all the same, and a table that holds it.
    """
    longest, mask = 128, 5
    draft = with_config("gemma3", tmp_path, pard_token=mask)
    case = scenario(
        "gemma3",
        "gemma3",
        num_speculative_tokens=5,
        speculative={"parallel_drafting": True},
        prompts=prompts_of("gemma3", [118, 112, 7]),
        max_tokens=20,
        engine={"max_model_len": longest},
        graphs="FULL_DECODE_ONLY",
        capture_sizes=(6, 18),
    )
    case = dataclasses.replace(case, draft=draft)
    result = engine.run(case)
    for prompt, tokens in zip(case.prompts, result.tokens, strict=True):
        assert len(prompt) + len(tokens) == min(longest, len(prompt) + case.max_tokens)
        assert_greedy(case.model, [prompt], [tokens], len(tokens))
    cut = [within(proposal, longest) for proposal in result.proposals]
    for proposal in cut:
        alone = dataclasses.replace(result, proposals=[proposal])
        assert_drafted_in_parallel(draft, mask, alone, len(proposal.tokens))
    lengths = {len(proposal.tokens) for proposal in cut}
    assert {2, case.num_speculative_tokens} < lengths, "none passes the end half-way"
    assert result.draft_replays > 3

# SPDX-License-Identifier: Apache-2.0
"""Targets and drafts with backends of their own: tokens, acceptance, and every draft token."""

import importlib.util
import json
from dataclasses import replace

import pytest

from reliability.fault_cases import DRAFT_WRITES
from tests.support import engine, prompts, reference
from tests.support.pairs import (
    TIES,
    assert_drafts_are_the_drafts_own,
    assert_greedy_tokens_of_reference,
    backends,
    run_greedy,
    run_judged,
    scenario,
)
from tests.support.tiny_models import model_directory

FLASH_3_DRAFT = {"attention": {"draft": {"full_attention": "flash_attention_3"}}}
FLASH_3_TARGET = {"attention": {"target": "flash_attention_3"}}

one_and_two_devices = pytest.mark.parametrize("tensor_parallel_size", [1, 2], ids=["tp1", "tp2"])


def run_and_judge(case, tensor_parallel_size=1):
    case = engine.dataclasses.replace(
        case, engine={**case.engine, "tensor_parallel_size": tensor_parallel_size}
    )
    result = run_judged(case)
    return result


@pytest.mark.smoke
@one_and_two_devices
def test_mla_target_with_dense_draft(tensor_parallel_size):
    case = scenario("deepseek_v2_target", "llama_draft")
    result = run_and_judge(case, tensor_parallel_size)
    assert backends(result) == {"target": {"mla"}, "draft": {"fused_infer_attention"}}
    assert result.mean_acceptance_length > 1.8


@pytest.mark.host("0.23", cases=["tp1"])
@pytest.mark.nightly("other cases of it stay", cases=["tp2"])
@one_and_two_devices
def test_dense_target_with_dense_draft_on_another_backend(tensor_parallel_size):
    case = scenario("llama_target", "llama_draft", mkv_ascend=FLASH_3_DRAFT)
    result = run_and_judge(case, tensor_parallel_size)
    assert backends(result) == {
        "target": {"fused_infer_attention"},
        "draft": {"flash_attention_3"},
    }
    assert result.mean_acceptance_length > 1.8


@pytest.mark.host("0.23")
def test_target_on_flash_attention_3_verifies_drafts():
    """vllm-ascend's own implementation attends without a causal mask in the verify step."""
    result = run_and_judge(scenario("llama_target", "llama_draft", mkv_ascend=FLASH_3_TARGET))
    assert backends(result) == {
        "target": {"flash_attention_3"},
        "draft": {"fused_infer_attention"},
    }
    assert result.mean_acceptance_length > 1.8


@pytest.mark.host("0.23", cases=["tp1"])
@pytest.mark.nightly("other cases of it stay", cases=["tp2"])
@one_and_two_devices
def test_a_model_drafting_for_itself_is_always_accepted(tensor_parallel_size):
    case = scenario("llama_target", "llama_target")
    result = run_and_judge(case, tensor_parallel_size)
    assert result.num_drafts > 0
    assert result.accepted_per_position == [result.num_drafts] * case.num_speculative_tokens


def test_an_mla_model_drafting_for_itself_is_always_accepted():
    """Cosines and sines of every pass are the draft's own; stock accepts about 15 % here."""
    case = scenario("deepseek_v2_target", "deepseek_v2_target")
    result = run_and_judge(case)
    assert backends(result) == {"target": {"mla"}, "draft": {"mla"}}
    assert result.accepted_per_position == [result.num_drafts] * case.num_speculative_tokens


@pytest.mark.host("0.23")
def test_drafts_stay_right_through_chunks_and_prefix_hits():
    case = scenario(
        "deepseek_v2_target",
        "llama_draft",
        engine={"max_num_batched_tokens": 64, "max_num_seqs": 4},
        repeats=2,
    )
    result = run_and_judge(case)
    second_round = result.cached_tokens[len(case.prompts) :]
    assert max(second_round) >= 128


# Methods of speculation without a draft model stay vllm-ascend's: ngram, and suffix decoding.

K, SHORTEST, LONGEST = 3, 2, 4


def looked_up(context):
    """What follows the earliest occurrence of the longest suffix that occurred before."""
    for length in range(LONGEST, SHORTEST - 1, -1):
        suffix = context[-length:]
        for start in range(len(context) - length):
            if context[start : start + length] == suffix:
                return context[start + length : start + length + K]
    return []


@pytest.mark.host("0.23")
def test_ngram_proposes_what_followed_before():
    text = prompts.held_out_text(2, 60)
    texts = [text + text[:20], *prompts.text_prompts()[4:8]]
    case = scenario(
        "gemma3",
        prompts=[reference.token_ids(model_directory("gemma3"), text) for text in texts],
        record_drafts=True,
        engine={
            "speculative_config": {
                "method": "ngram",
                "num_speculative_tokens": K,
                "prompt_lookup_min": SHORTEST,
                "prompt_lookup_max": LONGEST,
            }
        },
    )
    result = run_greedy(case)
    assert len(result.proposals) > 20
    for proposal in result.proposals:
        assert proposal.tokens == looked_up(proposal.context)
    assert result.num_accepted > 20
    assert {row["role"] for row in result.layers} == {"target"}


@pytest.mark.host("0.23")
@pytest.mark.skipif(
    importlib.util.find_spec("arctic_inference") is not None,
    reason="arctic-inference is installed, so that nothing is missing",
)
def test_suffix_decoding_says_which_package_it_needs():
    case = scenario(
        "llama_target",
        engine={"speculative_config": {"method": "suffix", "num_speculative_tokens": K}},
    )
    with pytest.raises(engine.EngineFailedError, match=r"pip install arctic-inference==0\.1\.1"):
        engine.run(case)


# What the start-up line says of how a draft's passes run.


@pytest.mark.host("0.23")
@pytest.mark.parametrize(
    ("compiled", "graphs", "why", "says"),
    [
        (True, object(), None, "replayed from one graph"),
        # vllm-ascend 0.30.0rc2 asks for a compiled model there, and captures others all the same.
        (False, object(), None, "replayed from one graph"),
        (True, None, "it says so", "replayed from graphs: it says so."),
        (False, None, "it says so", "The draft runs eagerly."),
    ],
)
def test_a_draft_is_said_to_run_eagerly_where_nothing_is_captured(compiled, graphs, why, says):
    import vllm_ascend.ops  # noqa: F401  before the rest of it: its modules import in a circle

    from mkv_ascend.adapters.common.drafting.assembly import Assembly

    assembly = object.__new__(Assembly)
    assembly.replays_target = compiled
    assembly.graphs, assembly.why_eager = graphs, why
    assert says in assembly._execution_mode()


# A draft whose keys are stale for a while: writes of its caches are lost, the target's are not.
#
# An MLA target writes its cache by another operator than a dense draft, so that writes of the draft
# alone can be lost. The keys that lie there instead are those of requests before.

LOST = {"operator": DRAFT_WRITES, "launch": 40, "fault": "lost", "times": 80}


@pytest.mark.skipif(
    engine.compared_dtype() != "float32", reason="a device loses no writes where it is asked to"
)
@pytest.mark.host("0.23", cases=["graphs"])
@pytest.mark.nightly("other cases of it stay", cases=["eager"])
@pytest.mark.parametrize("graphs", [None, "FULL_DECODE_ONLY"], ids=["eager", "graphs"])
def test_the_targets_tokens_stay_and_later_drafts_are_right(tmp_path, graphs):
    asked = tmp_path / "faults.json"
    asked.write_text(json.dumps([LOST]))
    case = scenario(
        "deepseek_v2_target",
        "gemma3_draft",
        graphs=graphs,
        repeats=2,
        engine={"enable_prefix_caching": False},
        environment={"EMULATED_NPU_FAULTS": str(asked)},
    )
    result = engine.run(case)
    assert result.log.count(f"asked-for lost at a launch of {DRAFT_WRITES}") == LOST["times"]
    assert_greedy_tokens_of_reference(case, result)
    contexts = [proposal.context for proposal in result.proposals]
    again = contexts.index(contexts[0], 1)
    near_tie, _ = TIES["float32"]
    assert reference.check_drafts(case.draft, result.proposals[:again], near_tie).wrong
    assert_drafts_are_the_drafts_own(case, replace(result, proposals=result.proposals[again:]))

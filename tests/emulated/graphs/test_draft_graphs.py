# SPDX-License-Identifier: Apache-2.0
"""Targets and drafts in ACL graphs: tokens and every draft token are those of eager mode.

Verify steps have K + 1 tokens per request. Where all requests of a batch verify drafts, a proposal
is one replay. Graphs are captured for 1, 3 and 6 requests, so that batches of up to 8 are on,
between and past the captured sizes.
"""

import re
from dataclasses import replace

import pytest

from tests.emulated import probes
from tests.support import engine, programs
from tests.support.pairs import (
    assert_drafts_are_the_drafts_own,
    assert_greedy_tokens_of_reference,
    scenario,
)


def case_in_graphs(target, draft, k, method="draft_model", **fields):
    return scenario(
        target,
        draft,
        num_speculative_tokens=k,
        speculative={"method": method},
        graphs="FULL_DECODE_ONLY",
        capture_sizes=tuple(requests * (k + 1) for requests in (1, 3, 6)),
        **fields,
    )


def run_replayed(case):
    result = engine.run(case)
    assert engine.replayed(result.log)
    return result


@pytest.mark.smoke(cases=["llama_target-deepseek_v32_target-3"])
@pytest.mark.host("0.23", cases=["*-2", "llama_target-*"])
@pytest.mark.parametrize(
    ("target", "draft", "k"),
    [
        ("deepseek_v2_target", "deepseek_v2_draft", 3),  # MLA, another rotary base in the draft
        ("gemma3", "gemma3_draft", 2),  # both in several KV groups
        ("llama_target", "gemma3_draft", 4),  # the draft alone in several
        ("llama_target", "deepseek_v32_target", 3),  # sparse: lengths on the device
    ],
)
def test_independent_drafts(target, draft, k):
    case = case_in_graphs(target, draft, k)
    result = run_replayed(case)
    assert_greedy_tokens_of_reference(case, result)
    assert_drafts_are_the_drafts_own(case, result)
    assert result.mean_acceptance_length > 1.5
    assert result.draft_replays > 5
    assert_captures_are_reported(result, draft_captures=3)


@pytest.mark.core(cases=["gpt_oss-*"])
@pytest.mark.host("0.23")
@pytest.mark.parametrize(
    ("target", "draft", "method", "k"),
    [
        ("gpt_oss", "gpt_oss_eagle3", "eagle3", 3),  # sinks: an operator of their own
        ("deepseek_v3_mtp", "deepseek_v3_mtp", "mtp", 3),
    ],
)
def test_heads_propose_as_in_eager_mode(target, draft, method, k):
    """Whose proposals in eager mode are the references' (test_drafting_reference.py)."""
    case = case_in_graphs(target, draft, k, method)
    result, eager = run_replayed(case), engine.run(replace(case, graphs=None))
    assert result.tokens == eager.tokens
    assert result.proposals == eager.proposals
    assert result.accepted_per_position == eager.accepted_per_position
    assert result.draft_replays > 5


@pytest.mark.host("0.23")
def test_two_ranks():
    """The draft has two KV groups and another backend than the target; each rank has its graphs."""
    case = case_in_graphs(
        "deepseek_v2_target", "gemma3_draft", 3, engine={"tensor_parallel_size": 2}
    )
    result = run_replayed(case)
    assert "The draft reads 2 KV groups" in result.log
    assert_greedy_tokens_of_reference(case, result)
    assert_drafts_are_the_drafts_own(case, result)
    assert result.draft_replays > 5


@pytest.mark.host("0.23")
@pytest.mark.parametrize("k", [1, 5])
def test_asynchronous_scheduling_and_chunks_beside_decodes(k):
    """Acceptance of a model that drafts for itself shows every wrong draft token."""
    limits = {"max_num_batched_tokens": 64, "max_num_seqs": 6}
    case = case_in_graphs("llama_target", "llama_target", k, record_drafts=False, engine=limits)
    result = run_replayed(case)
    assert_greedy_tokens_of_reference(case, result)
    assert result.accepted_per_position == [result.num_drafts] * k
    assert result.draft_replays > 5


def assert_captures_are_reported(result, draft_captures):
    """Once, by the number of sizes that were asked for; seconds and bytes are measured."""
    lines = re.findall(
        r"Graphs captured of the draft: (\d+) in ([\d.]+) s, ([\d.]+) MiB\.", result.log
    )
    assert len(lines) == (draft_captures > 0)
    for graphs, seconds, kept in lines:
        assert int(graphs) == draft_captures
        assert float(seconds) > 0.0
        assert float(kept) > 0.0


@pytest.mark.host("0.23")
def test_a_draft_may_be_asked_to_run_eagerly():
    """Two requests verify in a graph for three: the draft is handed no row of padding."""
    case = case_in_graphs("llama_target", "llama_draft", 3)
    eagerly = {**case.speculative, "enforce_eager": True}
    case = replace(case, speculative=eagerly, prompts=case.prompts[:2])
    result = run_replayed(case)
    assert_greedy_tokens_of_reference(case, result)
    assert_drafts_are_the_drafts_own(case, result)
    assert result.draft_replays == 0
    assert "replayed from graphs: speculative_config says enforce_eager" in result.log
    assert_captures_are_reported(result, draft_captures=0)


@pytest.mark.smoke
def test_default_settings_of_vllm_serve():
    """Traced by Dynamo; mixed batches in pieces, verify steps and proposals in full graphs."""
    case = scenario(
        "llama_target",
        "gemma3_draft",
        num_speculative_tokens=3,
        engine={"enforce_eager": False, "max_num_seqs": 3},
        traced=True,
    )
    result = run_replayed(case)
    assert "'cudagraph_mode': <CUDAGraphMode.FULL_AND_PIECEWISE" in result.log
    assert_greedy_tokens_of_reference(case, result)
    assert_drafts_are_the_drafts_own(case, result)
    assert result.draft_replays > 5


@pytest.mark.host("0.23")
def test_broken_graphs_of_a_draft_are_noticed():
    """A model that drafts for itself; lengths, then a buffer, as no proposal may leave them."""
    case = case_in_graphs("llama_target", "llama_target", 3)
    request = {
        "engine": {**case.engine_arguments(), "async_scheduling": False},
        "prompts": case.prompts[:2],
        "max_tokens": 24,
    }
    result = programs.answer_of(probes.broken_graphs, request)
    whole, frozen = result["whole"], result["frozen"]
    assert whole["accepted"] == whole["drafted"] > 0
    # The tokens are the target's whatever its draft does: acceptance shows it.
    assert frozen["tokens"] == whole["tokens"]
    assert frozen["accepted"] < frozen["drafted"]
    assert whole["replays"] > 3 < frozen["replays"]
    assert re.search(r"graph replay: .* freed since the capture", result["moved"])

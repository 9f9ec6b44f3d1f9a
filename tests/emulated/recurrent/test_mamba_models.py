# SPDX-License-Identifier: Apache-2.0
"""Models with Mamba2 states or windows of short convolutions, alone and verifying drafts."""

import dataclasses
import functools
from types import SimpleNamespace

import pytest
import torch
from vllm.v1.attention.backends.registry import MambaAttentionBackendEnum
from vllm.v1.kv_cache_interface import MambaSpec

from mkv_ascend.adapters.common.patches import recurrent
from tests.support import engine, stock
from tests.support.models import grouped_model, shared_model
from tests.support.pairs import (
    TIES,
    assert_greedy,
    prompts_of,
    run_greedy,
    run_judged,
    scenario,
    text_prompts,
)
from tests.support.tiny_models import model_directory

FAMILIES = ["granite4", "lfm2"]
BLOCK = 128
CHUNK = 40
K = 3
GRAPHS = {"graphs": "FULL_DECODE_ONLY", "capture_sizes": (4, 8, 16)}
NGRAM = {
    "method": "ngram",
    "num_speculative_tokens": K,
    "prompt_lookup_min": 2,
    "prompt_lookup_max": 4,
}


@pytest.mark.host("0.23")
@pytest.mark.parametrize("name", FAMILIES)
def test_tokens_in_chunks_and_after_prefix_hits(name):
    """Chunks of prompts beside decodes; the second round takes states from cached blocks."""
    limits = {"max_num_batched_tokens": BLOCK, "max_num_seqs": 4, "enable_prefix_caching": True}
    case = scenario(name, engine=limits, repeats=2)
    result = run_greedy(case)
    assert max(result.cached_tokens[: len(case.prompts)]) == 0
    assert max(result.cached_tokens[len(case.prompts) :]) >= BLOCK


@pytest.mark.host("0.23")
@pytest.mark.parametrize("name", FAMILIES)
def test_tokens_with_small_chunks_and_preemption(name):
    """Chunks that end within the model's own chunks; requests lose their states and start again."""
    limits = {
        "long_prefill_token_threshold": CHUNK,
        "enable_prefix_caching": False,
        "num_gpu_blocks_override": 12,
    }
    text = text_prompts(model_directory(name))[-5]
    # Their last token needs the window of the chunk before.
    after_chunks = [text[: CHUNK * count + 2] for count in range(1, 7)]
    case = scenario(name, engine=limits)
    case = dataclasses.replace(case, prompts=[*after_chunks, *case.prompts[6:13]])
    result = run_greedy(case)
    assert result.preemptions > 0


@pytest.mark.core(cases=["granite4-*"])
@pytest.mark.host("0.23", cases=["lfm2-v1"])
@pytest.mark.nightly("other cases of it stay", cases=["*-v2"])
@stock.each_runner
@pytest.mark.parametrize("name", FAMILIES)
def test_states_are_taken_back_to_what_was_accepted(name, runner):
    """Drafts are rejected at every position, with states kept at the ends of blocks besides."""
    limits = {"max_num_batched_tokens": 2 * BLOCK, "enable_prefix_caching": True}
    case = scenario(
        name,
        "llama_draft",
        engine=limits,
        repeats=2,
        num_speculative_tokens=K,
        environment=runner,
    )
    result = run_judged(case)
    assert max(result.cached_tokens[len(case.prompts) :]) >= BLOCK
    accepted = result.accepted_per_position
    assert result.num_drafts > accepted[0] > accepted[1] > accepted[2] > 20


@pytest.mark.host("0.23", cases=["granite4-graphs-v1", "lfm2-eager-v1"])
@pytest.mark.nightly("other cases of it stay", cases=["*-v2", "granite4-eager-*", "lfm2-graphs-*"])
@stock.each_runner
@pytest.mark.parametrize("graphs", [{}, GRAPHS], ids=["eager", "graphs"])
@pytest.mark.parametrize("name", FAMILIES)
def test_states_of_preempted_requests(name, graphs, runner):
    """They begin again, in chunks of as many tokens as a verify step, beside rows that verify."""
    case = scenario(
        name,
        "llama_draft",
        prompts=[prompt[:60] for prompt in text_prompts(model_directory(name))[:6]],
        engine={"long_prefill_token_threshold": K + 1, "max_num_seqs": 4},
        # Long enough for requests to need another block, without which none is preempted.
        max_tokens=90,
        num_speculative_tokens=K,
        force_preemption=True,
        environment=runner,
        **graphs,
    )
    result = run_judged(case)
    assert result.preemptions > 0
    assert 0 < result.num_accepted < result.num_draft_tokens
    assert not graphs or result.draft_replays > 5


@pytest.mark.host("0.23", cases=["granite4-eager-v1", "granite4-graphs-v1"])
@pytest.mark.nightly("other cases of it stay", cases=["*-v2", "lfm2-*"])
@stock.each_runner
@pytest.mark.parametrize("graphs", [{}, GRAPHS], ids=["eager", "graphs"])
@pytest.mark.parametrize("name", FAMILIES)
def test_states_where_the_longest_context_ends(name, graphs, runner):
    """The last steps of a request have fewer drafts or none, beside chunks of other prompts."""
    longest = 64
    case = scenario(
        name,
        "llama_draft",
        prompts=prompts_of(name, range(20, 36)),
        engine={
            "max_model_len": longest,
            "max_num_seqs": 4,
            "long_prefill_token_threshold": K + 1,
        },
        max_tokens=longest,
        num_speculative_tokens=K,
        environment=runner,
        **graphs,
    )
    result = engine.run(case)
    for prompt, tokens in zip(case.prompts, result.tokens, strict=True):
        assert_greedy(model_directory(name), [prompt], [tokens], longest - len(prompt))
    ends = {tuple(made.context) for made in result.proposals}
    accepted = [len(end) for end in ends if end[: -(K + 1)] in ends]
    # Behind these all of K + 1 tokens fit no more.
    assert max(accepted) > longest - K
    assert not graphs or result.draft_replays > 5


@pytest.mark.host("0.23")
def test_heads_share_inputs_in_two_groups(tmp_path):
    """Each group of heads has its own B and C, and its output is normalised on its own."""
    directory = grouped_model.make(tmp_path / "of_groups", "llama_draft")
    prompts = text_prompts(directory)[2:9]
    limits = {"max_num_batched_tokens": BLOCK, "max_num_seqs": 4}
    case = engine.Scenario(str(directory), prompts=prompts, max_tokens=16, engine=limits)
    tokens = engine.run(case).tokens
    near_tie, _ = TIES[engine.compared_dtype()]

    def wrong(prepare):
        return shared_model.wrong_tokens(directory, prompts, tokens, near_tie, prepare)

    assert not wrong(grouped_model.scan_in_one_chunk)
    # The judge notices.
    assert len(wrong(grouped_model.normalise_all_groups_together)) > 10


@pytest.mark.host("0.23")
def test_states_without_attention_are_served_without_drafts(tmp_path):
    """With drafts vLLM would go on from the state after the first token of each step."""
    directory = grouped_model.make_states_alone(tmp_path / "mamba2")
    prompts = text_prompts(model_directory("llama_draft"))[2:9]
    case = engine.Scenario(str(directory), prompts=prompts, max_tokens=16)
    tokens = engine.run(case).tokens
    near_tie, _ = TIES[engine.compared_dtype()]

    def wrong(prepare):
        return shared_model.wrong_tokens(directory, prompts, tokens, near_tie, prepare)

    assert not wrong(grouped_model.scan_in_one_chunk)
    # The judge notices.
    assert len(wrong(grouped_model.forget_earlier)) > 10
    drafted = dataclasses.replace(case, engine={"speculative_config": NGRAM})
    with pytest.raises(engine.EngineFailedError, match="counts accepted tokens of no such model"):
        engine.run(drafted)


@pytest.mark.host("0.23")
def test_steps_without_drafts_start_from_what_was_accepted():
    """ngram finds nothing in many steps, which vllm-ascend then takes for ordinary decodes."""
    case = scenario("granite4", engine={"speculative_config": NGRAM, "max_num_seqs": 2})
    result = run_greedy(case)
    tokens = sum(map(len, result.tokens))
    assert 0 < result.num_drafts < tokens - result.num_accepted
    assert 10 < result.num_accepted < result.num_draft_tokens


@pytest.mark.host("0.23")
def test_windows_are_taken_back_in_graphs():
    """What was accepted is read when a graph is replayed, not kept from its capture."""
    case = scenario("lfm2", "llama_draft", engine={"max_num_seqs": 4}, **GRAPHS)
    result = run_greedy(case)
    assert 0 < result.num_accepted < result.num_draft_tokens


@pytest.mark.host("0.23")
def test_states_of_no_blocks_keys_are_refused_with_kv_transfer():
    connector = {"kv_connector": "SimpleCPUOffloadConnector", "kv_role": "kv_both"}
    case = scenario("lfm2", engine={"kv_transfer_config": connector})
    with pytest.raises(engine.EngineFailedError, match="Leave out --kv-transfer-config, or"):
        engine.run(case)


@pytest.mark.host("0.23")
@pytest.mark.parametrize("has_triton", [True, False])
def test_windows_that_would_be_written_to_a_copy_are_refused(monkeypatch, has_triton):
    """vLLM's own update, which serves without Triton, takes both ways."""
    spec = MambaSpec(
        128, ((4, 3),), (torch.float32,), mamba_type=MambaAttentionBackendEnum.SHORT_CONV
    )
    caches = SimpleNamespace(kv_cache_groups=[SimpleNamespace(kv_cache_spec=spec)])
    monkeypatch.setattr(recurrent, "HAS_TRITON", has_triton)
    prepare = functools.partial(recurrent.prepare, SimpleNamespace(mamba_config=None), caches)
    prepare()
    monkeypatch.setattr(recurrent, "is_conv_state_dim_first", lambda: True)
    if not has_triton:
        prepare()
        return
    with pytest.raises(ValueError, match="Leave the variable out, or set it to SD"):
        prepare()

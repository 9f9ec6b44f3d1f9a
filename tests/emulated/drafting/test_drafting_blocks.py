# SPDX-License-Identifier: Apache-2.0
"""Tokens that are drafted at once, from masks (method dflash): every token is the head's own."""

import dataclasses
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import vllm_ascend.ops  # noqa: F401  before the rest of it: its modules import in a circle
from vllm.v1.kv_cache_interface import FullAttentionSpec, SlidingWindowSpec
from vllm_ascend.attention.attention_v1 import AscendAttentionBackend

from tests.support import engine, hosts, speculation
from tests.support.loop_judgement import assert_every_draft_token, assert_reference, drafter_of
from tests.support.marks import needs_float32
from tests.support.pairs import assert_greedy, kv_groups, prompts_of, scenario, with_config
from tests.support.stock import RUNNER_V2, each_runner
from tests.support.tiny_models import model_directory

# Method dflash over one KV group; over several it stands in ``test_drafting_reference``.

refuse_windows = hosts.module("drafting.mask_tokens").refuse_windows


@needs_float32
def test_one_group_chunks_prefix_hits_and_the_maximum_length():
    """Every token whose block fits is the head's own; past the maximum nothing is asked of it.

    Proposals are replayed from graphs where all requests verify drafts, of 1 and 3 requests for 2.
    """
    target, draft = model_directory("gpt_oss"), model_directory("gpt_oss_dflash")
    max_model_len, k = 288, 3
    case = scenario(
        "gpt_oss",
        "gpt_oss_dflash",
        prompts=prompts_of("gpt_oss", [265, 268, 5]),
        max_tokens=30,
        num_speculative_tokens=k,
        speculative={"method": "dflash"},
        engine={
            "max_model_len": max_model_len,
            "max_num_batched_tokens": 64,
            "disable_hybrid_kv_cache_manager": True,
        },
        graphs="FULL_DECODE_ONLY",
        capture_sizes=(k + 1, 3 * (k + 1)),
        repeats=2,
    )
    result = engine.run(case)
    assert result.draft_replays > 5
    assert kv_groups(result, "draft") == kv_groups(result, "target") == {0}
    assert max(result.cached_tokens) >= 128
    first = result.tokens[: len(case.prompts)]
    assert result.tokens == first * 2
    for prompt, tokens in zip(case.prompts, first, strict=True):
        assert len(tokens) == min(case.max_tokens, max_model_len - len(prompt))
        assert_greedy(case.model, [prompt], [tokens], len(tokens))
    head = speculation.load_head(draft, target)
    asked = 0
    for prompt, tokens in zip(case.prompts, first, strict=True):
        whole = (*prompt, *tokens)
        proposals = [
            p
            for p in result.proposals
            if p.context == list(whole[: len(p.context)]) and len(p.context) + k <= max_model_len
        ]
        asked += len(proposals)
        with torch.inference_mode():
            rows = head.blocks(
                head.known(speculation.hidden_states_of(target, whole)),
                torch.tensor([[p.context[-1] for p in proposals]]),
                torch.tensor([[len(p.context) - 1 for p in proposals]]),
                k,
            )[0]
        drafted = torch.tensor([p.tokens for p in proposals])
        lead = rows.max(-1).values - rows.gather(-1, drafted[..., None])[..., 0]
        assert lead.max() < speculation.TIE
    assert asked > 20


@pytest.mark.host("0.23")
def test_a_window_that_no_operator_is_given_is_refused():
    """vllm-ascend's operator call without a causal mask has no window."""
    common = {"block_size": 128, "num_kv_heads": 1, "head_size": 64, "dtype": torch.float16}
    short = {"short": SlidingWindowSpec(sliding_window=8, **common)}
    layer = SimpleNamespace(get_attn_backend=lambda: AscendAttentionBackend)
    layers = dict.fromkeys(("short", "whole", "kept"), layer)
    refuse_windows({"whole": FullAttentionSpec(**common), **short}, ["short"], layers)
    with pytest.raises(NotImplementedError, match="draft's layer short has a cache of Sliding"):
        refuse_windows(short, ["whole"], layers)
    with pytest.raises(NotImplementedError, match="without a window"):
        refuse_windows({"kept": FullAttentionSpec(sliding_window=8, **common)}, (), layers)


# Method dflash whose configuration says that no mask token sees a later one.
TARGET, HEAD, METHOD = "gpt_oss", "gpt_oss_dflash", "dflash"


@needs_float32
@each_runner
def test_every_draft_token_of_causal_layers_is_the_heads_own(runner, tmp_path):
    options = {"mask_token_id": 263, "target_layer_ids": [0, 1, 2], "causal": True}
    draft = with_config(HEAD, tmp_path, dflash_config=options)
    case = scenario(
        TARGET,
        HEAD,
        prompts=prompts_of(TARGET, [70, 40, 5]),
        max_tokens=32,
        speculative={"method": METHOD},
        environment=runner,
        graphs="FULL_DECODE_ONLY",
        capture_sizes=(4, 8),
    )
    k = case.num_speculative_tokens
    drafter = speculation.DraftBlock(Path(draft), model_directory(TARGET), k)
    assert_every_draft_token(dataclasses.replace(case, draft=draft), drafter, least=20 * k)


# Method dflash whose layers have windows beside layers that see all, as published heads have.
#
# A layer with a window sees no mask token behind its own; the others see the whole block. So target
# and draft lie in several KV groups, and the draft's need two masks. vLLM takes such a head on
# model runner V2 alone.
#
# Other published heads have windows of layers that see the mask tokens behind their own, too: all
# layers where ``use_swa`` is set, any where ``is_causal`` or ``causal`` is false.
PAIR = ("gpt_oss", "gpt_oss_windows_dflash", "dflash")
SLIDING, WHOLE = "sliding_attention", "full_attention"


@needs_float32
@hosts.only_on("vllm_ascend_0_30", "vLLM 0.23.0 leaves windows of such a head out")
def test_proposals_and_acceptance_are_those_of_plain_loops():
    """With more tokens than the head was trained for."""
    k, sizes = 5, (6, 24)
    result = assert_reference(
        *PAIR,
        k,
        RUNNER_V2,
        graphs="FULL_DECODE_ONLY",
        capture_sizes=sizes,
        engine={"num_gpu_blocks_override": 40},
    )
    assert len(kv_groups(result, "draft")) > 1


@needs_float32
@hosts.only_on("vllm_ascend_0_30", "vLLM 0.23.0 leaves windows of such a head out")
def test_every_draft_token_without_graphs_and_behind_prefix_hits():
    target, head, method = PAIR
    case = scenario(
        target,
        head,
        prompts=prompts_of(target, [265, 268, 5]),
        max_tokens=20,
        speculative={"method": method},
        environment=RUNNER_V2,
        repeats=2,
    )
    k = case.num_speculative_tokens
    drafter = drafter_of(model_directory(target), head, method, k)
    result = assert_every_draft_token(case, drafter, least=30 * k)
    assert max(result.cached_tokens) >= 128


def options(**more):
    """``dflash_config`` with the head's own mask token and depths."""
    return {"mask_token_id": 263, "target_layer_ids": [0, 1, 2], **more}


SEE_LATER = {"dflash_config": options(causal=False)}
"""Layers with windows see later mask tokens, in words that loops read."""
CASES = [
    pytest.param({}, {"layer_types": [SLIDING] * 3}, {"layer_types": [SLIDING] * 3}, id="causal"),
    pytest.param(
        {},
        {"layer_types": [WHOLE] * 3, "dflash_config": options(use_swa=True)},
        {"layer_types": [SLIDING] * 3, **SEE_LATER},
        id="use_swa",
    ),
    # The first mask tokens do not see the last ones.
    pytest.param(
        RUNNER_V2,
        {"is_causal": False, "sliding_window": 3},
        {"sliding_window": 3, **SEE_LATER},
        id="shorter than the block",
    ),
]


@needs_float32
@hosts.only_on("vllm_ascend_0_30", "vLLM 0.23.0 leaves windows of such a head out")
@pytest.mark.parametrize(("runner", "asked", "of_loops"), CASES)
def test_every_draft_token_eagerly_and_in_graphs(runner, asked, of_loops, tmp_path):
    """Model runner V1 takes windows in all layers or none."""
    target, head, method = PAIR
    draft, loops = (tmp_path / name for name in ("engine", "loops"))
    draft.mkdir()
    loops.mkdir()
    case = scenario(
        target,
        head,
        prompts=prompts_of(target, [130, 40, 5]),
        max_tokens=32,
        speculative={"method": method},
        environment=runner,
        graphs="FULL_DECODE_ONLY",
        capture_sizes=(4, 8, 12),
    )
    k = case.num_speculative_tokens
    case = dataclasses.replace(case, draft=with_config(head, draft, **asked))
    loops = Path(with_config(head, loops, **of_loops))
    drafter = speculation.DraftBlock(loops, model_directory(target), k)
    result = assert_every_draft_token(case, drafter, least=20 * k)
    assert result.draft_replays > 5

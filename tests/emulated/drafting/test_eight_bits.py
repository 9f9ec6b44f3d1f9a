# SPDX-License-Identifier: Apache-2.0
"""Targets and drafts of unlike formats: weights and caches of 8 bits beside bfloat16."""

import dataclasses

import pytest

from tests.support import (
    eight_bits,
    engine,
    hosts,
    reference,
    rounded_sparse,
    speculation,
    stock,
)
from tests.support.eight_bit_pairs import (
    BLOCK,
    CHUNK,
    GRAPHS,
    LENGTHS,
    TARGET,
    AtOnce,
    assert_accepted_as_counted,
    assert_said,
    case_of,
    decided_prompts,
    judged,
    near_tie_of,
    rows_of,
    rows_of_head,
    run,
    said,
)
from tests.support.pairs import prompts_of
from tests.support.stock import each_runner
from tests.support.tiny_models import model_directory

DRAFT = "llama_draft"
COARSER = {"target": 1, "draft": 16}
"""Times that keys and values are rounded coarser than they must be. A plain cache gives other draft
tokens then. A target's rounding would move logits by more than near ties, where bfloat16 lies
between two such keys."""

# Static scales are powers of two here, so coarse that one input that is rounded otherwise moves a
# logit by up to 0.2, on one prompt of one processor: run by hand.
EAGER_AND_GRAPHS = pytest.mark.parametrize(
    ("weights", "graphs"),
    [(eight_bits.STATIC, {}), (eight_bits.DYNAMIC, GRAPHS)],
    ids=["eager", "graphs"],
)


@pytest.mark.core(cases=["graphs-*"])
@pytest.mark.host("0.23", cases=["graphs-v1"])
@pytest.mark.nightly("other cases of it stay", cases=["eager-*"])
@each_runner
@EAGER_AND_GRAPHS
def test_target_of_8_bits_with_bfloat16_draft(weights, graphs, runner):
    target = eight_bits.quantised(TARGET, weights=weights, cache=True)
    fields = {"prompts": decided_prompts(), "environment": runner, **graphs}
    result = run(target, model_directory(DRAFT), **fields)
    assert bool(result.draft_replays) == bool(result.target_replays) == bool(graphs)


@pytest.mark.host("0.23", cases=["v1"])
@pytest.mark.nightly("other cases of it stay", cases=["v2"])
@each_runner
def test_draft_of_8_bits_beside_states(runner):
    """Its blocks have fewer tokens than the configuration's, and lie contiguously beside states."""
    draft = eight_bits.quantised(TARGET, cache=True, coarser=COARSER["draft"])
    fields = {"engine": {"block_size": 256}, "environment": runner, **GRAPHS}
    case = case_of(model_directory("granite4"), draft, **fields)
    result = engine.run(case)
    assert_said(rows_of(draft, AtOnce(case)), result.proposals)
    assert result.draft_replays


@pytest.mark.host("0.23", cases=["graphs-v1"])
@pytest.mark.nightly("other cases of it stay", cases=["*-v2", "eager-*"])
@each_runner
@EAGER_AND_GRAPHS
def test_bfloat16_target_with_draft_of_8_bits(weights, graphs, runner):
    draft = eight_bits.quantised(TARGET, weights=weights, cache=True)
    result = run(model_directory("llama_target"), draft, environment=runner, **graphs)
    assert bool(result.draft_replays) == bool(graphs)


@pytest.mark.host("0.23")
def test_mla_target_with_draft_of_8_bits():
    draft = eight_bits.quantised(TARGET, weights=eight_bits.DYNAMIC, cache=True)
    assert run(model_directory("deepseek_v2_target"), draft, **GRAPHS).draft_replays


@pytest.mark.host("0.23", cases=["target-v1"])
@pytest.mark.nightly("other cases of it stay", cases=["*-v2", "draft-*"])
@each_runner
@pytest.mark.parametrize("quantised", ["target", "draft"])
def test_chunks_of_prompts_and_prefix_hits(quantised, runner):
    """A chunk behind others, and one behind a hit, attends to what the cache gives back."""
    target, draft = model_directory("llama_target"), model_directory(DRAFT)
    in_8_bits = eight_bits.quantised(TARGET, cache=True, coarser=COARSER[quantised])
    target, draft = (in_8_bits, draft) if quantised == "target" else (target, in_8_bits)
    limits = {"enable_prefix_caching": True, "long_prefill_token_threshold": CHUNK}
    chosen = {"prompts": decided_prompts()} if quantised == "target" else {}
    case = case_of(target, draft, engine=limits, repeats=2, environment=runner, **chosen)
    result = engine.run(case)
    hits = result.cached_tokens
    assert [count for count in hits if count] == [BLOCK]
    assert hits.index(BLOCK) >= len(LENGTHS)
    rounds = [result.tokens[: len(LENGTHS)], result.tokens[len(LENGTHS) :]]
    for number, tokens in enumerate(rounds):
        one = dataclasses.replace(result, tokens=tokens)
        at_once = AtOnce(case, CHUNK, beside_a_hit=number > 0)
        assert_said(rows_of(target, at_once), said(case, one))
    assert_said(rows_of(draft, AtOnce(case, CHUNK)), result.proposals)
    if quantised == "draft":
        plain = rows_of(model_directory(TARGET), AtOnce(case, CHUNK))
        assert reference.judge(plain, result.proposals).wrong
    assert sum(result.accepted_per_position) > result.num_drafts / 3


@pytest.mark.host("0.23")
def test_draft_in_the_format_compressed_tensors():
    """A matrix that its file names as plain is plain: vLLM puts a word before a draft's names."""
    draft = eight_bits.compressed(TARGET, ["model.layers.0.mlp.down_proj"])
    assert run(model_directory("llama_target"), draft, **GRAPHS).draft_replays


@pytest.mark.host("0.23")
def test_mla_draft_of_quantised_weights():
    draft = eight_bits.quantised("deepseek_v2_draft", weights=eight_bits.STATIC)
    assert run(model_directory(TARGET), draft, **GRAPHS).draft_replays


@pytest.mark.nightly("stock alone, which changes when a host does")
def test_stock_takes_tokens_of_a_verify_step_for_requests():
    """On keys and values of 8 bits: without drafts it runs, with drafts the operator refuses."""
    target = eight_bits.quantised(TARGET, cache=True)
    alone = case_of(target, None, environment=stock.STOCK)
    judged(alone, engine.run(alone), target, None)
    with pytest.raises(engine.EngineFailedError, match="kv lengths for a batch of"):
        engine.run(case_of(target, model_directory(DRAFT), environment=stock.STOCK))


@pytest.mark.nightly("stock alone, which changes when a host does")
def test_stock_does_not_start_with_a_quantised_draft():
    draft = eight_bits.quantised(DRAFT, weights=eight_bits.DYNAMIC)
    with pytest.raises(engine.EngineFailedError, match="hf_overrides must be a dict"):
        engine.run(case_of(model_directory(TARGET), draft, environment=stock.STOCK))


def in_8_bits():
    """Caches of sparse attention in 8 bits: indexer and latents. No rounding chooses other keys."""
    every_key = max(LENGTHS) + 24
    overridden = {"hf_overrides": {"index_topk": every_key}}
    if not hosts.INDEXER_IS_A_LAYER:
        options = {"enable_sparse_li_c8": True, "enable_sparse_sfa_c8": True}
        return every_key, {**overridden, "additional_config": options}
    asked = {"attention_config": {"indexer_kv_dtype": "int8"}, "kv_cache_dtype": "int8"}
    return every_key, {**overridden, **asked}


def run_sparse(draft, rounding, **fields):
    """DeepSeek-V3.2 with a draft: tokens by a reference that rounds so."""
    target = model_directory("deepseek_v32_target")
    case = case_of(target, draft, **fields)
    result = engine.run(case)

    def rows(context, tokens):
        logits = rounded_sparse.logits_of(target, [*context, *tokens], rounding)
        return logits[len(context) - 1 :]

    assert_said(rows, said(case, result))
    assert_said(rows_of(draft, AtOnce(case)), result.proposals, near_tie_of(draft))
    assert_accepted_as_counted(case, result)
    return result


@pytest.mark.nightly("static scales of sparse MLA stay in other tests of 8 bits")
@each_runner
@pytest.mark.parametrize("graphs", [{}, GRAPHS], ids=["eager", "graphs"])
def test_sparse_target_of_8_bits_with_bfloat16_draft(graphs, runner):
    every_key, asked = in_8_bits()
    rounding = rounded_sparse.Rounding(index_topk=every_key, latent=True)
    draft = model_directory(DRAFT)
    result = run_sparse(draft, rounding, engine=asked, environment=runner, **graphs)
    assert bool(result.draft_replays) == bool(graphs)


@pytest.mark.host("0.23")
def test_sparse_target_with_draft_of_8_bits():
    every_key, _ = in_8_bits()
    draft = eight_bits.quantised(TARGET, weights=eight_bits.DYNAMIC, cache=True)
    asked = {"hf_overrides": {"index_topk": every_key}}
    rounding = rounded_sparse.Rounding(index_topk=every_key)
    assert run_sparse(draft, rounding, engine=asked, **GRAPHS).draft_replays


# Latents of MLA in 8 bits (``fa_quant_type``): where a node reads prompts they stay plain.

PLAIN = "deepseek_v2_target"
WITH_MTP = "deepseek_v3_mtp"


def described(name, tmp_path):
    return eight_bits.with_latents(model_directory(name), tmp_path / "target")


def judged_by_plain_latents(case, result, draft_rows):
    """Tokens by the target with plain latents, draft tokens by the draft."""
    assert_said(rows_of(model_directory(PLAIN), AtOnce(case)), said(case, result))
    assert_said(draft_rows, result.proposals)
    assert_accepted_as_counted(case, result)


@pytest.mark.nightly("with a layer that drafts, plain latents stay")
@each_runner
def test_a_dense_draft(runner, tmp_path):
    draft = model_directory("llama_draft")
    case = case_of(described(PLAIN, tmp_path), draft, environment=runner)
    judged_by_plain_latents(case, engine.run(case), rows_of(draft, AtOnce(case)))


@pytest.mark.host("0.23", cases=["v1"])
@pytest.mark.nightly("other cases of it stay", cases=["v2"])
@each_runner
def test_its_own_drafting_layer(runner, tmp_path):
    target = described(WITH_MTP, tmp_path)
    case = case_of(target, target, environment=runner, speculative={"method": "mtp"})
    drafter = speculation.DraftHead(model_directory(WITH_MTP), model_directory(PLAIN))
    judged_by_plain_latents(case, engine.run(case), drafter.rows)


# Method mtp: a plain head on hidden states of a target with keys and values of 8 bits.

NAME = "glm4_moe_wide_mtp"
TARGET_WITH_MTP = {"speculative": {"method": "mtp"}}
COARSER_TARGET = 16
"""Times that keys and values are rounded coarser than they must be, so that tokens change."""


def target_of_8_bits():
    return eight_bits.quantised(NAME, cache=True, coarser=COARSER_TARGET)


def judged_of_target(case, result, at_once):
    """Tokens by the target, where a plain cache gives others; draft tokens by the head."""
    target, plain = target_of_8_bits(), model_directory(NAME)
    assert_said(rows_of(target, at_once), said(case, result))
    assert_said(rows_of_head(plain, target, at_once), result.proposals)
    assert_accepted_as_counted(case, result)
    assert reference.judge(rows_of(plain, at_once), said(case, result)).wrong


@pytest.mark.host("0.23", cases=["graphs-v1"])
@pytest.mark.nightly("other cases of it stay", cases=["eager-*"])
@each_runner
@pytest.mark.parametrize("graphs", [{}, GRAPHS], ids=["eager", "graphs"])
def test_a_head_on_a_target_of_8_bits(graphs, runner):
    target = target_of_8_bits()
    case = case_of(target, target, environment=runner, **TARGET_WITH_MTP, **graphs)
    result = engine.run(case)
    judged_of_target(case, result, AtOnce(case))
    assert bool(result.draft_replays) == bool(result.target_replays) == bool(graphs)


@pytest.mark.host("0.23", cases=["v1"])
@pytest.mark.nightly("other cases of it stay", cases=["v2"])
@each_runner
def test_chunks_and_prefix_hits_of_a_target_of_8_bits(runner):
    """Behind a hit the head reads its own keys, and the target its keys of 8 bits."""
    target = target_of_8_bits()
    prompts = prompts_of(TARGET, LENGTHS)
    stem = max(prompts, key=len)
    # It waits, until others have ended. The token behind the block is the same, of which the head
    # keeps a key in the block.
    prompts.append([*stem[: BLOCK + 1], *prompts[0][1:20]])
    case = case_of(
        target,
        target,
        prompts=prompts,
        engine={"enable_prefix_caching": True, "long_prefill_token_threshold": CHUNK},
        environment=runner,
        **TARGET_WITH_MTP,
    )
    result = engine.run(case)
    assert result.cached_tokens == [0] * len(LENGTHS) + [BLOCK]
    judged_of_target(case, result, AtOnce(case, CHUNK, hits=(len(LENGTHS),)))

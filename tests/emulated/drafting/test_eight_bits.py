# SPDX-License-Identifier: Apache-2.0
"""Targets and drafts of unlike formats: weights and caches of 8 bits beside bfloat16."""

import dataclasses

import pytest

from tests.support import eight_bits, engine, hosts, reference, rounded_sparse, stock
from tests.support.pairs import TIES, prompts_of
from tests.support.stock import each_runner
from tests.support.tiny_models import model_directory

TARGET, DRAFT = "qwen3_wide", "llama_draft"
# Past one block of 128 tokens. The last has fewer tokens than a verify step, and waits until
# another request has ended: its prompt is a shorter row beside verify steps.
LENGTHS = [41, 9, 126, 17, 140, 30, 3]
BLOCK, CHUNK = 128, 48
"""Tokens of a block, of which one prompt fills one, and of a prompt that a step computes."""
SHARE = 0.05
"""Share of tokens that may be near ties, which rounding decides."""

GRAPHS = {"graphs": "FULL_DECODE_ONLY", "capture_sizes": (4, 8, 16, 24)}


def case_of(target, draft, **fields):
    """A scenario in bfloat16, whose prompts are computed at once."""
    limits = {"dtype": "bfloat16", "max_num_batched_tokens": 2048, "max_num_seqs": 6}
    values = {
        "model": str(target),
        "draft": None if draft is None else str(draft),
        "prompts": prompts_of(TARGET, LENGTHS),
        "max_tokens": 24,
        "record_drafts": draft is not None,
        **fields,
        "engine": {**limits, "enable_prefix_caching": False, **fields.get("engine", {})},
    }
    return engine.Scenario(**values)


def rows_of(directory, case):
    """Logits of a model, quantised or not, after tokens of a request."""

    def rows(context, tokens):
        if not eight_bits.is_quantised(directory):
            return reference.logits_of(directory, [*context, *tokens])[len(context) - 1 :]
        start = next(one for one in case.prompts if list(context[: len(one)]) == one)
        at_once = len(start) if len(start) > case.num_speculative_tokens + 1 else 0
        return eight_bits.rows(directory, context, tokens, at_once)

    return rows


def judged(case, result, target, draft):
    """Tokens and draft tokens by the models themselves; acceptance by counting."""
    assert_said(rows_of(target, case), said(case, result), near_tie_of(target))
    if draft is not None:
        assert_said(rows_of(draft, case), result.proposals, near_tie_of(draft))
        assert_accepted_as_counted(case, result)


def said(case, result):
    """What the target said, as proposals after the prompts."""
    assert [len(tokens) for tokens in result.tokens] == [case.max_tokens] * len(case.prompts)
    pairs = zip(case.prompts, result.tokens, strict=True)
    return [reference.DraftProposal(prompt, tokens) for prompt, tokens in pairs]


def near_tie_of(directory):
    """Difference of two logits that decides nothing.

    Inputs of matrices are rounded to whole numbers; where bfloat16 lies between two of them, it may
    be the other one than in float32. Logits then differ by up to 0.1; they spread by 4 and more.
    """
    return 0.15 if eight_bits.rounds_inputs(directory) else TIES["bfloat16"][0]


def assert_said(rows, proposals, near_tie=TIES["bfloat16"][0]):
    """Every token is that of the logits ``rows``, or one of a small share of near ties."""
    assert proposals
    report = reference.judge(rows, proposals, near_tie)
    assert not report.wrong, "\n".join(map(str, report.wrong))
    assert len(report.near_ties) <= SHARE * report.checked, "\n".join(map(str, report.near_ties))


def assert_accepted_as_counted(case, result):
    """Each verified proposal is accepted up to its first token that did not come out."""
    made = {tuple(one.context): one.tokens for one in result.proposals}
    accepted, verified = [0] * case.num_speculative_tokens, 0
    undecided = 0
    for prompt, tokens in zip(case.prompts, result.tokens, strict=True):
        at = 1
        while at < len(tokens):
            proposed = made[(*prompt, *tokens[:at])]
            verified += 1
            count = 0
            for token, right in zip(proposed, tokens[at:], strict=False):
                if token != right:
                    break
                accepted[count] += 1
                count += 1
            undecided += at + count >= len(tokens)
            at += count + 1
    assert result.num_drafts == verified
    for counted, reported in zip(accepted, result.accepted_per_position, strict=True):
        assert counted <= reported <= counted + undecided
    assert sum(accepted) > verified / 3


def run(target, draft, **fields):
    case = case_of(target, draft, **fields)
    result = engine.run(case)
    judged(case, result, target, draft)
    return result


# Static scales are powers of two here, so coarse that one input that is rounded otherwise moves a
# logit by up to 0.2, on one prompt of one processor: run by hand.
EAGER_AND_GRAPHS = pytest.mark.parametrize(
    ("weights", "graphs"),
    [(eight_bits.STATIC, {}), (eight_bits.DYNAMIC, GRAPHS)],
    ids=["eager", "graphs"],
)


@each_runner
@EAGER_AND_GRAPHS
def test_target_of_8_bits_with_bfloat16_draft(weights, graphs, runner):
    target = eight_bits.quantised(TARGET, weights=weights, cache=True)
    result = run(target, model_directory(DRAFT), environment=runner, **graphs)
    assert bool(result.draft_replays) == bool(result.target_replays) == bool(graphs)


@each_runner
@EAGER_AND_GRAPHS
def test_bfloat16_target_with_draft_of_8_bits(weights, graphs, runner):
    draft = eight_bits.quantised(TARGET, weights=weights, cache=True)
    result = run(model_directory("llama_target"), draft, environment=runner, **graphs)
    assert bool(result.draft_replays) == bool(graphs)


@each_runner
@pytest.mark.parametrize("quantised", ["target", "draft"])
def test_chunks_of_prompts_and_prefix_hits(quantised, runner):
    """A chunk behind others, and one behind a hit, attends to what the cache gives back."""
    target, draft = model_directory("llama_target"), model_directory(DRAFT)
    in_8_bits = eight_bits.quantised(TARGET, cache=True)
    target, draft = (in_8_bits, draft) if quantised == "target" else (target, in_8_bits)
    limits = {"enable_prefix_caching": True, "long_prefill_token_threshold": CHUNK}
    case = case_of(target, draft, engine=limits, repeats=2, environment=runner)
    result = engine.run(case)
    hits = result.cached_tokens
    assert [count for count in hits if count] == [BLOCK]
    assert hits.index(BLOCK) >= len(LENGTHS)
    rounds = [result.tokens[: len(LENGTHS)], result.tokens[len(LENGTHS) :]]
    for number, tokens in enumerate(rounds):
        one = dataclasses.replace(result, tokens=tokens)
        assert_said(rows_in_chunks(target, case, number), said(case, one))
    assert_said(rows_in_chunks(draft, case, 0), result.proposals)
    assert sum(result.accepted_per_position) > result.num_drafts / 3


def rows_in_chunks(directory, case, number):
    """Logits of a model whose prompts came in chunks, in a round with hits behind the first one.

    The tokens of a step are computed from plain keys where each of its chunks begins a prompt.
    """
    if not eight_bits.is_quantised(directory):
        return rows_of(directory, case)

    def rows(context, tokens):
        start = next(one for one in case.prompts if list(context[: len(one)]) == one)
        waited = case.prompts.index(start) >= case.engine["max_num_seqs"]
        # With the first requests of the second round comes the one that is hit.
        beside_a_hit = number > 0 and not waited and len(start) <= BLOCK
        at_once = 0 if beside_a_hit or len(start) <= case.num_speculative_tokens + 1 else CHUNK
        return eight_bits.rows(directory, context, tokens, min(at_once, len(start)))

    return rows


def test_draft_in_the_format_compressed_tensors():
    """A matrix that its file names as plain is plain: vLLM puts a word before a draft's names."""
    draft = eight_bits.compressed(TARGET, ["model.layers.0.mlp.down_proj"])
    assert run(model_directory("llama_target"), draft, **GRAPHS).draft_replays


def test_mla_draft_of_quantised_weights():
    draft = eight_bits.quantised("deepseek_v2_draft", weights=eight_bits.STATIC)
    assert run(model_directory(TARGET), draft, **GRAPHS).draft_replays


def test_stock_takes_tokens_of_a_verify_step_for_requests():
    """On keys and values of 8 bits: without drafts it runs, with drafts the operator refuses."""
    target = eight_bits.quantised(TARGET, cache=True)
    alone = case_of(target, None, environment=stock.STOCK)
    judged(alone, engine.run(alone), target, None)
    with pytest.raises(engine.EngineFailedError, match="kv lengths for a batch of"):
        engine.run(case_of(target, model_directory(DRAFT), environment=stock.STOCK))


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


@each_runner
@pytest.mark.parametrize("graphs", [{}, GRAPHS], ids=["eager", "graphs"])
def test_sparse_target_of_8_bits_with_bfloat16_draft(graphs, runner):
    every_key, asked = in_8_bits()
    target, draft = model_directory("deepseek_v32_target"), model_directory(DRAFT)
    case = case_of(target, draft, engine=asked, environment=runner, **graphs)
    result = engine.run(case)
    rounding = rounded_sparse.Rounding(index_topk=every_key, latent=True)

    def rows(context, tokens):
        logits = rounded_sparse.logits_of(target, [*context, *tokens], rounding)
        return logits[len(context) - 1 :]

    assert_said(rows, said(case, result))
    assert_said(rows_of(draft, case), result.proposals)
    assert_accepted_as_counted(case, result)
    assert bool(result.draft_replays) == bool(graphs)

# SPDX-License-Identifier: Apache-2.0
"""Models whose attention chooses keys: DeepSeek-V3.2, with contexts far longer than its choice."""

import pytest
import torch

from tests.support import engine, hosts, reference, rounded_sparse, speculation
from tests.support.pairs import (
    MAX_TOKENS,
    TIES,
    assert_drafts_are_the_drafts_own,
    assert_greedy,
    assert_greedy_tokens_of_reference,
    backends,
    scenario,
    with_config,
)
from tests.support.prompts import held_out_text
from tests.support.rounded_sparse import Rounding
from tests.support.tiny_models import model_directory

TARGET = "deepseek_v32_target"
# Six requests begin in two blocks of 128 tokens each; going on, they need three.
LENGTHS = [250, 248, 246, 245, 244, 243]
SCARCE = {"num_gpu_blocks_override": 16}

pytestmark = pytest.mark.skipif(
    engine.compared_dtype() != "float32", reason="a near tie of two keys changes all that follows"
)


def long_prompts():
    directory = model_directory(TARGET)
    texts = [held_out_text(index, length - 1) for index, length in enumerate(LENGTHS)]
    return [reference.token_ids(directory, text) for text in texts]


def test_tokens_are_those_of_the_chosen_keys():
    """In chunks, in mixed batches and from the prefix cache; with 2048 keys they would differ."""
    case = scenario(TARGET, engine={"max_num_batched_tokens": 64, "max_num_seqs": 4}, repeats=2)
    result = engine.run(case)
    assert backends(result) == {"target": {"sparse_mla"}}
    assert_greedy_tokens_of_reference(case, result)
    assert max(result.cached_tokens[len(case.prompts) :]) >= 128


@pytest.mark.host("0.23")
@pytest.mark.parametrize("draft", ["llama_draft", "deepseek_v2_draft"])
def test_dense_draft_with_preemption(draft):
    case = scenario(TARGET, draft, prompts=long_prompts(), engine=SCARCE)
    result = engine.run(case)
    assert result.preemptions > 0
    assert result.num_accepted > 0
    assert_greedy_tokens_of_reference(case, result)
    assert_drafts_are_the_drafts_own(case, result)


@pytest.mark.core
@pytest.mark.host("0.23")
def test_drafting_for_itself_is_always_accepted():
    """Every pass chooses keys anew; its lengths stay on the device."""
    case = scenario(TARGET, TARGET, prompts=long_prompts(), engine={"max_num_batched_tokens": 64})
    result = engine.run(case)
    assert backends(result) == {"target": {"sparse_mla"}, "draft": {"sparse_mla"}}
    assert_greedy_tokens_of_reference(case, result)
    assert_drafts_are_the_drafts_own(case, result)
    assert result.num_drafts > 0
    assert result.accepted_per_position == [result.num_drafts] * case.num_speculative_tokens


def in_8_bits(*, keys, latents=False):
    """The engine's arguments. vllm-ascend 0.30.0rc2 takes vLLM's own options instead of its own."""
    if not hosts.INDEXER_IS_A_LAYER:
        options = {"enable_sparse_li_c8": keys, "enable_sparse_sfa_c8": latents}
        return {"additional_config": options}
    asked = {"attention_config": {"indexer_kv_dtype": "int8"}} if keys else {}
    return {**asked, "kv_cache_dtype": "int8"} if latents else asked


LIMITS = {"dtype": "bfloat16", "max_num_batched_tokens": 64, "max_num_seqs": 4}


def assert_cached_bytes(result, per_token):
    """What a token takes in a layer. There are two layers, with blocks of 128 tokens."""
    assert f"blocks of {2 * 128 * per_token / 1024} KiB" in result.log


def judge_under(rounding, case, result):
    """What Hugging Face says that rounds so."""

    def rows(context, tokens):
        logits = rounded_sparse.logits_of(case.model, [*context, *tokens], rounding)
        return logits[len(context) - 1 :]

    return reference.judge(rows, said(case, result), TIES["bfloat16"][0])


def said(case, result):
    pairs = zip(case.prompts, result.tokens, strict=True)
    return [reference.DraftProposal(prompt, tokens) for prompt, tokens in pairs]


def places(deviations):
    """Where the deviations are: (prompt, token)."""
    return {(deviation.proposal, deviation.position) for deviation in deviations}


def deviations(report):
    """Tokens that a judge would not have said, or hardly."""
    return len(places([*report.wrong, *report.near_ties]))


@pytest.mark.host("0.23")
@pytest.mark.parametrize("eight_bit_keys", [False, True])
def test_keys_of_the_indexer_choose_as_well_in_8_bits(eight_bit_keys):
    """C8: half the bytes and a scale per token. vllm-ascend rotates them in bfloat16 only.

    Where two keys score alike to 8 bits, bfloat16 chooses one and float32 the other, and the
    tokens after that are another model's. So Hugging Face in bfloat16 is a judge beside float32.
    """
    case = scenario(TARGET, engine={**LIMITS, **in_8_bits(keys=eight_bit_keys)})
    result = engine.run(case)
    # Latent and rope, the indexer's key, and its scale of 16 bits if it has one.
    assert_cached_bytes(result, 2 * 576 + (128 + 2 if eight_bit_keys else 2 * 128))
    near_tie, share = TIES["bfloat16"]
    rounded = judge_under(Rounding(indexer=eight_bit_keys), case, result)
    exact = reference.check_drafts(case.model, said(case, result), near_tie)
    # Where the two disagree the rounding decides, and the engine may take either side, or one of
    # its own where a key more scores alike, as more keys do in 8 bits. All counts for one share.
    undecided = places([*exact.wrong, *exact.near_ties, *rounded.wrong, *rounded.near_ties])
    wider = 2 if eight_bit_keys else 1
    assert len(undecided) <= wider * share * exact.checked, "\n".join(map(str, rounded.wrong))
    if eight_bit_keys:
        # Shares alone would not notice keys without their scales: most are much alike.
        faulty = judge_under(Rounding(indexer=True, key_scales=False), case, result)
        assert deviations(rounded) < deviations(faulty)


@pytest.mark.host("0.23")
def test_latents_of_8_bits():
    """C8: a scale for each 128 values. All keys are chosen, so that no rounding chooses others."""
    every_key = max(len(prompt) for prompt in scenario(TARGET).prompts) + MAX_TOKENS
    asked = {**in_8_bits(keys=True, latents=True), "hf_overrides": {"index_topk": every_key}}
    case = scenario(TARGET, engine={**LIMITS, **asked})
    result = engine.run(case)
    # The latent, rope in 16 bits, scales in 32, and the indexer's key with its scale.
    assert_cached_bytes(result, 512 + 2 * 64 + 4 * 4 + 128 + 2)
    report = judge_under(Rounding(index_topk=every_key, latent=True), case, result)
    # 8 bits leave wider ties than 16: both count against the share of the near ones.
    undecided = [*report.wrong, *report.near_ties]
    assert len(undecided) <= TIES["bfloat16"][1] * report.checked, "\n".join(map(str, undecided))


def with_first_choice(context, drafted):
    """Logits of a head whose last row attends, in each pass, to the keys that it first chose."""
    target, head = (model_directory(name) for name in (TARGET, "deepseek_v32_mtp"))
    first = []

    def choose(_module, _inputs, chosen):
        first.append(chosen[:, -1])
        wanted = chosen.shape[-1]
        again = first[0].repeat(1, 1 + wanted // first[0].shape[-1])[:, :wanted]
        return torch.cat([chosen[:, :-1], again[:, None]], dim=1)

    indexer = speculation.load_head(head, target).layer.self_attn.indexer
    hook = indexer.register_forward_hook(choose)
    try:
        return speculation.DraftHead(head, target).rows(context, drafted)
    finally:
        hook.remove()


@pytest.mark.host("0.23")
def test_later_passes_reuse_the_choice_of_the_first(tmp_path):
    """Of their own request: there are several, of unlike lengths (GLM-5.2)."""
    shared = {"index_share_for_mtp_iteration": True, "use_index_cache": True}
    model = with_config("deepseek_v32_mtp", tmp_path, **shared)
    case = engine.Scenario(
        model,
        model,
        prompts=long_prompts()[:2] + [prompt[:40] for prompt in long_prompts()[2:4]],
        max_tokens=24,
        speculative={"method": "mtp"},
        engine={"max_num_batched_tokens": 64, "max_num_seqs": 4},
        graphs="FULL_DECODE_ONLY",
        capture_sizes=(4, 8, 16),
        record_drafts=True,
    )
    result = engine.run(case)
    assert_greedy(model_directory(TARGET), case.prompts, result.tokens, case.max_tokens)
    report = reference.judge(with_first_choice, result.proposals, speculation.TIE)
    assert not report.wrong, report.wrong[:5]
    assert report.checked > 3 * 20
    anew = speculation.DraftHead(model_directory("deepseek_v32_mtp"), model_directory(TARGET))
    assert reference.judge(anew.rows, result.proposals, speculation.TIE).wrong

# SPDX-License-Identifier: Apache-2.0
"""DeepSeek-V4: compressed keys, windows, their states and the indexer's keys; its MTP layer.

It computes in bfloat16 only, so the comparison of tokens allows near ties, which two orders of
summation leave in 16 bits. Otherwise it is as sharp as elsewhere: one wrong key changes many
tokens.
The matrix runs it with all drafts (``benchmarks/matrix/rounded.py`` says how that is judged).
"""

import random

from tests.support import deepseek_v4, engine, hosts, prompts, reference
from tests.support.pairs import TIES, backends
from tests.support.tiny_models import model_directory

MAX_TOKENS = 16
# Around a group of 4, a window of 128 and groups of 128.
LENGTHS = (6, 127, 128, 141, 301)
ENGINE = {"dtype": "bfloat16", "max_num_batched_tokens": 128, "max_num_seqs": 4}
if not hosts.ADAPTER.RULES.compressed_in_one_process:
    ENGINE["distributed_executor_backend"] = "mp"

NEAR_TIE, SHARE = TIES["bfloat16"]


def random_prompts(lengths=LENGTHS):
    generator = random.Random(0)
    return [[generator.randrange(256) for _ in range(length)] for length in lengths]


def text_prompts(lengths=LENGTHS):
    """Prompts of text, so that drafts are accepted."""
    texts = [prompts.held_out_text(place, length - 1) for place, length in enumerate(lengths)]
    return [reference.token_ids(model_directory("deepseek_v4_fitted"), text) for text in texts]


def scenario(**fields):
    values = {
        "model": str(model_directory("deepseek_v4_fitted")),
        "prompts": random_prompts(),
        "max_tokens": MAX_TOKENS,
        "engine": ENGINE,
        **fields,
    }
    return engine.Scenario(**values)


def deviations(case, result, judge):
    """Every token against the reference's choice after the tokens before it."""

    def rows(context, tokens):
        return judge.logits([*context, *tokens])[len(context) - 1 :]

    pairs = zip(case.prompts * case.repeats, result.tokens, strict=True)
    proposals = [reference.DraftProposal(prompt, tokens) for prompt, tokens in pairs]
    report = reference.judge(rows, proposals, NEAR_TIE)
    assert report.checked == MAX_TOKENS * len(case.prompts) * case.repeats
    return report


def assert_tokens_are(case, result, judge):
    report = deviations(case, result, judge)
    assert not report.wrong, "\n".join(map(str, report.wrong[:5]))
    # A prompt that is run again meets the same ones again: each place counts once.
    places = {(tie.proposal % len(case.prompts), tie.position) for tie in report.near_ties}
    assert len(places) <= SHARE * report.checked, places


def model(**changes):
    whole = deepseek_v4.load(model_directory("deepseek_v4_fitted"))
    return deepseek_v4.Reference(whole.config, whole.weights, **changes) if changes else whole


def test_tokens_are_the_references_and_drafts_its_mtp_layers():
    """In chunks, in mixed batches, and once more.

    Blocks hold states in float32 and keys in bfloat16 in turn: a key that is read before it was
    written is no number.
    """
    case = scenario(
        draft=str(model_directory("deepseek_v4_fitted")),
        speculative={"method": "mtp"},
        prompts=text_prompts(),
        record_drafts=True,
        repeats=2,
    )
    result = engine.run(case)
    assert backends(result) == {"target": {"compressed_mla"}, "draft": {"compressed_mla"}}
    assert_tokens_are(case, result, model())
    layer = deepseek_v4.DraftLayer(model_directory("deepseek_v4_fitted"))
    report = reference.judge(layer.rows, result.proposals[::8], NEAR_TIE)
    assert report.checked > 20
    assert not report.wrong, "\n".join(map(str, report.wrong[:5]))
    assert 0.2 < sum(result.accepted_per_position) / result.num_drafts < 2.5


def test_few_keys_are_chosen():
    """16 of up to 79 compressed keys. The operator documents 512, so this run is not strict."""
    changes = {"index_topk": 16}
    case = scenario(
        engine={**ENGINE, "hf_overrides": changes},
        environment={"EMULATED_NPU_STRICT": "0"},
    )
    result = engine.run(case)
    assert backends(result) == {"target": {"compressed_mla"}}
    assert_tokens_are(case, result, model(**changes))
    # The judge notices: with all keys other tokens are right.
    assert len(deviations(case, result, model()).wrong) > 5


def test_dense_draft():
    """A draft without windows, though all of the target's layers have one."""
    case = scenario(
        draft=str(model_directory("llama_draft")),
        record_drafts=True,
        engine={**ENGINE, "block_size": 128},
    )
    result = engine.run(case)
    assert {row["kind"] for row in result.layers if row["role"] == "draft"} == {"full_attention"}
    assert_tokens_are(case, result, model())
    report = reference.check_drafts(case.draft, result.proposals, NEAR_TIE)
    assert report.checked == case.num_speculative_tokens * len(result.proposals) > 100
    assert not report.wrong, "\n".join(map(str, report.wrong[:5]))

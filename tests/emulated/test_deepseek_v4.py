# SPDX-License-Identifier: Apache-2.0
"""DeepSeek-V4, with random weights: compressed keys, windows, their states and the indexer's keys.

It computes in bfloat16 only, so its tokens are compared with the near ties that two orders of
summation leave in 16 bits. All else is as sharp as elsewhere: one wrong key changes many tokens.
"""

import functools
import random

from mkv_ascend.testing import deepseek_v4, engine, reference
from mkv_ascend.testing.tiny_models import model_directory
from tests.emulated.pairs import TIES, backends

MAX_TOKENS = 16
# Around a group of 4, a window of 128 and groups of 128.
LENGTHS = (6, 127, 128, 141, 301)
ENGINE = {"dtype": "bfloat16", "max_num_batched_tokens": 128, "max_num_seqs": 4}

NEAR_TIE, SHARE = TIES["bfloat16"]


def random_prompts(lengths=LENGTHS):
    generator = random.Random(0)
    return [[generator.randrange(256) for _ in range(length)] for length in lengths]


def scenario(**fields):
    values = {
        "model": str(deepseek_v4.model_directory()),
        "prompts": random_prompts(),
        "max_tokens": MAX_TOKENS,
        "engine": ENGINE,
        **fields,
    }
    return engine.Scenario(**values)


@functools.cache
def model(**changes):
    return deepseek_v4.Reference(deepseek_v4.model_directory(), **changes)


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
    # Logits in bfloat16 are often equal, more so with random weights.
    assert len(report.near_ties) <= 2 * SHARE * report.checked, len(report.near_ties)


def test_tokens_are_the_references():
    """In chunks, in mixed batches, and once more."""
    case = scenario(repeats=2)
    result = engine.run(case)
    assert backends(result) == {"target": {"compressed_mla"}}
    assert_tokens_are(case, result, model())


def test_few_keys_are_chosen():
    """16 of up to 79 compressed keys. The operator documents 512, so this run is not strict."""
    changes = {"index_topk": 16}
    case = scenario(
        engine={**ENGINE, "hf_overrides": changes},
        environment={"MKV_ASCEND_EMULATOR_STRICT": "0"},
    )
    result = engine.run(case)
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

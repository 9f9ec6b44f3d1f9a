# SPDX-License-Identifier: Apache-2.0
"""Models whose attention chooses keys: DeepSeek-V3.2, with contexts far longer than its choice."""

import pytest

from mkv_ascend.testing import engine, reference, rounded_sparse
from mkv_ascend.testing.prompts import held_out_text
from mkv_ascend.testing.tiny_models import model_directory
from tests.emulated.pairs import (
    TIES,
    assert_drafts_are_the_drafts_own,
    assert_greedy_tokens_of_reference,
    backends,
    scenario,
)

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


@pytest.mark.parametrize("draft", ["llama_draft", "deepseek_v2_draft"])
def test_dense_draft_with_preemption(draft):
    case = scenario(TARGET, draft, prompts=long_prompts(), engine=SCARCE)
    result = engine.run(case)
    assert result.preemptions > 0
    assert result.num_accepted > 0
    assert_greedy_tokens_of_reference(case, result)
    assert_drafts_are_the_drafts_own(case, result)


@pytest.mark.parametrize("eight_bit_keys", [False, True])
def test_tokens_are_those_of_the_same_rounding(eight_bit_keys):
    """C8: half the bytes and a scale per token. vllm-ascend rotates them in bfloat16 only.

    Of two keys that score alike to 8 bits, bfloat16 chooses one and float32 the other, and the
    tokens behind are another model's. So Hugging Face in bfloat16 is a judge beside float32.
    """
    case = scenario(
        TARGET,
        engine={
            "dtype": "bfloat16",
            "max_num_batched_tokens": 64,
            "max_num_seqs": 4,
            "additional_config": {"enable_sparse_li_c8": eight_bit_keys},
        },
    )
    result = engine.run(case)
    # Two layers of 128 tokens: latent and rope (576) and the indexer's keys of 128 values in 16
    # bits; or those keys in 8, and a 16-bit scale.
    key_bytes = 128 + 2 if eight_bit_keys else 128 * 2
    assert f"blocks of {2 * 128 * (2 * 576 + key_bytes) / 1024} KiB" in result.log

    def rows(context, tokens):
        logits = rounded_sparse.logits_of(case.model, [*context, *tokens], eight_bit_keys)
        return logits[len(context) - 1 :]

    pairs = zip(case.prompts, result.tokens, strict=True)
    proposals = [reference.DraftProposal(prompt, tokens) for prompt, tokens in pairs]
    near_tie, share = TIES["bfloat16"]
    rounded = reference.judge(rows, proposals, near_tie)
    exact = reference.check_drafts(case.model, proposals, near_tie)
    # Where the two disagree the rounding decides, and the engine may take either side.
    wrong = places(rounded.wrong) & places(exact.wrong)
    assert not wrong, "\n".join(map(str, rounded.wrong[:5]))
    undecided = places([*exact.wrong, *exact.near_ties, *rounded.wrong, *rounded.near_ties])
    assert len(undecided) <= share * exact.checked


def places(deviations):
    """Where the deviations are: (prompt, token)."""
    return {(deviation.proposal, deviation.position) for deviation in deviations}

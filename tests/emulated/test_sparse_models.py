# SPDX-License-Identifier: Apache-2.0
"""Models whose attention chooses keys: DeepSeek-V3.2, with contexts far longer than its choice."""

import pytest

from mkv_ascend.testing import engine, reference
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


def test_8_bit_keys_of_the_indexer_choose_as_well():
    """C8: half the bytes and a scale per token. vllm-ascend rotates them in bfloat16 only."""
    case = scenario(
        TARGET,
        engine={
            "dtype": "bfloat16",
            "max_num_batched_tokens": 64,
            "max_num_seqs": 4,
            "additional_config": {"enable_sparse_li_c8": True},
        },
    )
    result = engine.run(case)
    # Two layers of 128 tokens: latent and rope (576) in 16 bits, 128 bytes and a 16-bit scale.
    assert f"blocks of {2 * 128 * (2 * 576 + 128 + 2) / 1024} KiB" in result.log
    pairs = zip(case.prompts, result.tokens, strict=True)
    proposals = [reference.DraftProposal(prompt, tokens) for prompt, tokens in pairs]
    near_tie, share = TIES["bfloat16"]
    report = reference.check_drafts(case.model, proposals, near_tie)
    assert not report.wrong, "\n".join(map(str, report.wrong[:5]))
    assert len(report.near_ties) <= share * report.checked

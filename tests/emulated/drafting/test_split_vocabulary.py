# SPDX-License-Identifier: Apache-2.0
"""Sampling over a vocabulary of which each rank keeps a share.

vllm-ascend calls it reduced sampling. Its own loop over passes asks a draft model for a part that
no class has, so that even a start fails; our loop asks for its choice among all shares.
"""

import pytest

from tests.support import engine, hosts
from tests.support.pairs import (
    assert_drafts_are_the_drafts_own,
    assert_greedy_tokens_of_reference,
    scenario,
    text_prompts,
)
from tests.support.tiny_models import model_directory

pytestmark = pytest.mark.host("0.23")


@hosts.only_on("vllm_ascend_0_23", "0.30.0rc2 has no option of that name")
@pytest.mark.parametrize(
    ("draft", "groups"), [("llama_draft", 1), ("gpt_oss_draft", 2)], ids=["one", "several"]
)
def test_drafts_of_split_sampling_are_the_drafts_own(draft, groups):
    """In one KV group and in several, eagerly and in graphs."""
    case = scenario(
        "llama_target",
        draft,
        prompts=text_prompts(model_directory("llama_target"), 5)[2:],
        max_tokens=16,
        graphs="FULL_DECODE_ONLY" if groups == 2 else None,
        capture_sizes=(12,),
        engine={
            "tensor_parallel_size": 2,
            "additional_config": {"enable_reduce_sample": True},
        },
    )
    result = engine.run(case)
    assert f"The draft reads {groups} KV groups" in result.log
    assert_greedy_tokens_of_reference(case, result)
    assert_drafts_are_the_drafts_own(case, result)
    assert result.mean_acceptance_length > 1.3
    assert (result.draft_replays > 5) == (groups == 2)

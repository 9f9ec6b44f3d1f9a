# SPDX-License-Identifier: Apache-2.0
"""Drafts against draft-and-verify in plain Hugging Face loops (``loop_judgement``)."""

import json

import pytest

from reliability.__main__ import main
from tests.support import engine, hosts, prompts, reference
from tests.support.loop_judgement import NEW_TOKENS, PAIRS, assert_reference
from tests.support.marks import needs_float32
from tests.support.pairs import scenario
from tests.support.sampled_pairs import DRAFT, assert_distributed_as_the_target_says
from tests.support.tiny_models import model_directory


@needs_float32
@pytest.mark.smoke(
    cases=["gemma3-*", "*-eagle-2", "gpt_oss-*-eagle3-3", "gpt_oss-*-dflash-3", "*-mtp-3"]
)
@pytest.mark.core(cases=["*-llama_eagle3-*"])
@pytest.mark.host(
    "0.23", cases=["*-eagle-2", "*-gpt_oss_draft-*", "*-gpt_oss_eagle3-*", "*-mtp-*", "gemma3-*"]
)
@pytest.mark.host("0.30", cases=["*-llama_eagle3-*"])
@pytest.mark.nightly(
    "other cases of it stay",
    cases=["*-5", "*-deepseek_v2_draft-*", "granite4-*", "lfm2-*", "qwen3_next-*"],
)
@pytest.mark.parametrize(("target", "draft", "method", "k"), PAIRS)
def test_proposals_and_acceptance_are_the_references(target, draft, method, k):
    assert_reference(target, draft, method, k)


@needs_float32
@pytest.mark.host("0.23")
def test_acceptance_cannot_see_a_wrong_window_but_the_reference_does():
    """With one key too many in every window the model still agrees with itself on everything.

    That key is the oldest one, which a text seldom needs: it decides a token in four of these.
    """
    directory = model_directory("gemma3")
    texts = [prompts.held_out_text(place, 60) for place in (13, 16, 17, 25)]
    case = scenario(
        "gemma3",
        "gemma3",
        prompts=[reference.token_ids(directory, text) for text in texts],
        max_tokens=NEW_TOKENS,
        mkv_ascend={"attention": {"window_bound": "vllm_ascend"}},
    )
    result = engine.run(case)
    assert result.accepted_per_position == [result.num_drafts] * case.num_speculative_tokens
    assert reference.check_drafts(case.draft, result.proposals).wrong


# Sampling with seeds, with a draft and without (``tests/support/sampled_pairs.py``).


@pytest.mark.parametrize("draft", [None, DRAFT], ids=["plain", "speculative"])
def test_tokens_are_distributed_as_the_target_says(draft):
    assert_distributed_as_the_target_says(draft)


# A slice of `python -m reliability pairs`: random models of random classes, random options.
COUNT = 4


@pytest.mark.slow
@pytest.mark.nightly("what its engines take has not been measured on an idle machine")
@pytest.mark.parametrize("runner", hosts.ADAPTER.RUNNERS)
def test_random_pairs_are_right_token_by_token(runner, capsys):
    options = ["--seed", "15", "--count", str(COUNT), "--runner", runner, "--json"]
    status = main(["pairs", *options])
    found = json.loads(capsys.readouterr().out)
    assert [one["reason"] for one in found if one["result"] not in ("works", "refused")] == []
    assert status == 0
    worked = [one["judgement"] for one in found if one["result"] == "works"]
    assert len(worked) >= COUNT - 1
    assert sum(one["judged"]["target"] for one in worked) > 100
    assert sum(one["judged"]["draft"] for one in worked) > 100
    assert sum(one["accepted"] for one in worked) > 10

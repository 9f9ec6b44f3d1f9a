# SPDX-License-Identifier: Apache-2.0
"""One engine reads prompts, another one decodes: the draft's caches cross with the target's.

The judge is the one of a single engine: plain loops of Hugging Face's models say each token, each
proposal, and how many of it are accepted at each position. A draft whose caches did not cross would
propose otherwise behind the first token.
"""

import dataclasses
import re

import pytest

from tests.support import engine, hosts
from tests.support.kv_transfer import transfer
from tests.support.loop_judgement import (
    REFERENCE_OF,
    SMALL_ENGINE,
    assert_reference,
    candidate_prompts,
)
from tests.support.pairs import (
    assert_drafts_are_the_drafts_own,
    assert_greedy_tokens_of_reference,
    scenario,
)
from tests.support.stock import each_runner
from tests.support.tiny_models import model_directory

# What nodes that decode are run with: requests that are preempted go back to be read again, and
# each request that comes begins as a verification of placeholders.
SENT_BACK = {"additional_config": {"recompute_scheduler_enable": True}}
# Drafts in several KV groups, on hidden states, and with the target's own kind of caches.
PAIRS = [
    pytest.param("gemma3", "gemma3_draft", "draft_model", {}, id="draft_model"),
    pytest.param("gpt_oss", "gpt_oss_eagle3", "eagle3", {}, id="eagle3"),
    pytest.param("deepseek_v3_mtp", "deepseek_v3_mtp", "mtp", SENT_BACK, id="mtp"),
]
K = 3


def read_prompts(target, draft, method, folder, runner):
    """The engine that reads prompts in chunks, drafts once behind each, and sends the caches."""
    directory = model_directory(REFERENCE_OF.get(target, target))
    prompts = candidate_prompts(directory)
    case = scenario(
        target,
        draft,
        prompts=prompts,
        max_tokens=1,
        num_speculative_tokens=K,
        speculative={"method": method},
        engine={**SMALL_ENGINE, "kv_transfer_config": transfer(folder, "kv_producer")},
        environment=runner,
    )
    engine.run(case)
    assert len([*folder.iterdir()]) == len(prompts)


@pytest.mark.host("0.23", cases=["draft_model-v1"])
@pytest.mark.nightly("other cases of it stay", cases=["*-v2", "eagle3-*", "mtp-*"])
@each_runner
@pytest.mark.parametrize(("target", "draft", "method", "asked"), PAIRS)
def test_what_another_engine_read_is_decoded_and_drafted_behind(
    target, draft, method, asked, runner, tmp_path
):
    read_prompts(target, draft, method, tmp_path, runner)
    result = assert_reference(
        target,
        draft,
        method,
        K,
        runner,
        engine={"kv_transfer_config": transfer(tmp_path, "kv_consumer"), **asked},
    )
    assert len(re.findall("got the caches of", result.log)) == len(result.tokens)


@pytest.mark.host("0.23", cases=["qwen3_next-v1"])
@pytest.mark.nightly("other cases of it stay", cases=["*-v2"])
@each_runner
@pytest.mark.parametrize(
    "target",
    [
        "qwen3_next",
        pytest.param(
            "granite4",
            marks=hosts.only_on("vllm_ascend_0_30", "0.23.0 sends no states of this size"),
        ),
    ],
)
def test_states_behind_the_last_token_of_a_prompt(target, runner, tmp_path):
    """The other engine leaves it out; here it begins beside requests that verify drafts."""
    prompts = candidate_prompts(model_directory(target))
    case = scenario(
        target,
        "llama_draft",
        prompts=[prompt[:-1] for prompt in prompts],
        max_tokens=1,
        engine={"kv_transfer_config": transfer(tmp_path, "kv_producer")},
        environment=runner,
    )
    engine.run(case)
    assert len([*tmp_path.iterdir()]) == len(prompts)
    decoding = {"kv_transfer_config": transfer(tmp_path, "kv_consumer"), **SENT_BACK}
    case = dataclasses.replace(
        case, prompts=prompts, max_tokens=24, engine={"max_num_seqs": 3, **decoding}
    )
    result = engine.run(case)
    assert_greedy_tokens_of_reference(case, result)
    assert_drafts_are_the_drafts_own(case, result)
    assert len(re.findall("got the caches of", result.log)) == len(prompts)

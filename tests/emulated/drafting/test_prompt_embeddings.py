# SPDX-License-Identifier: Apache-2.0
"""Prompts that are given as embeddings beside a draft over two KV groups.

With asynchronous scheduling the target of model runner V1 read the embeddings of other rows where
draft tokens stood, on stock vllm-ascend too: also for prompts of tokens, once they are allowed.
"""

from pathlib import Path

import pytest

from tests.support import engine, programs
from tests.support.marks import needs_float32
from tests.support.pairs import assert_greedy, scenario, text_prompts
from tests.support.stock import each_runner
from tests.support.tiny_models import model_directory

PROBE = Path(__file__).with_name("prompt_embeddings_probe.py")
TARGET, DRAFT = "llama_target", "gemma3_draft"
NEW_TOKENS = 16


@needs_float32
@each_runner
@pytest.mark.parametrize("asynchronous", [False, True], ids=["in turn", "asynchronous"])
def test_answers_are_the_targets_and_drafts_of_tokens_are_as_without(runner, asynchronous):
    model = model_directory(TARGET)
    prompts = text_prompts(model)[2:6]
    options = {"async_scheduling": asynchronous, "skip_tokenizer_init": True}
    case = scenario(
        TARGET,
        DRAFT,
        prompts=prompts,
        max_tokens=NEW_TOKENS,
        engine=options,
        environment=runner,
    )
    embedded = [[False] * 4, [True] * 4, [False, True, True, False]]
    rounds = [
        [
            {"tokens": tokens, "as_embeddings": choice}
            for tokens, choice in zip(prompts, choices, strict=True)
        ]
        for choices in embedded
    ]
    arguments = {
        **case.engine_arguments(),
        "enable_prompt_embeds": True,
        "disable_log_stats": False,
    }
    asked = {"engine": arguments, "rounds": rounds, "max_tokens": NEW_TOKENS}
    served = programs.answer_of(PROBE, asked, runner)
    for each in served:
        assert_greedy(model, prompts, each["tokens"], NEW_TOKENS)
    # Where prompts are tokens, the option changes no draft token either.
    assert served[0]["accepted"] == engine.run(case).accepted_per_position

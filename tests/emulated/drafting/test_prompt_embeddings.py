# SPDX-License-Identifier: Apache-2.0
"""Prompts that come as embeddings, or in parts."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
import vllm_ascend.ops  # noqa: F401  before the rest of it: its modules import in a circle
from vllm.v1.utils import CpuGpuBuffer
from vllm.v1.worker.gpu_input_batch import CachedRequestState

from tests.emulated.drafting import probes
from tests.support import engine, hosts, programs, reference
from tests.support.marks import needs_float32
from tests.support.pairs import assert_greedy, scenario, text_prompts
from tests.support.stock import RUNNER_V2, each_runner
from tests.support.tiny_models import model_directory

# Prompts that are given as embeddings beside a draft over two KV groups.
#
# With asynchronous scheduling the target of model runner V1 read the embeddings of other rows where
# draft tokens stood, on stock vllm-ascend too: also for prompts of tokens, once they are allowed.
# Its proposals asked for tokens of a prompt that is longer than a step, and the engine ended.

TARGET, DRAFT = "llama_target", "gemma3_draft"
NEW_TOKENS = 16
_proposers = hosts.module("drafting.proposers")
STEP = 64
"""Tokens of a step; two of the prompts are longer."""


@needs_float32
@each_runner
@pytest.mark.parametrize("asynchronous", [False, True], ids=["in turn", "asynchronous"])
def test_answers_are_the_targets_and_drafts_of_tokens_are_as_without(runner, asynchronous):
    model = model_directory(TARGET)
    prompts = text_prompts(model)[2:6]
    assert sum(len(prompt) > STEP for prompt in prompts) == 2
    options = {
        "async_scheduling": asynchronous,
        "skip_tokenizer_init": True,
        "max_num_batched_tokens": STEP,
    }
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
    served = programs.answer_of(probes.prompt_embeddings, asked, runner)
    for each in served:
        assert_greedy(model, prompts, each["tokens"], NEW_TOKENS)
    # Where prompts are tokens, the option changes no draft token either.
    assert served[0]["accepted"] == engine.run(case).accepted_per_position


@pytest.mark.parametrize("padded", [True, False])
@pytest.mark.parametrize("proposer", [_proposers.HeadProposer, _proposers.DraftModelProposer])
def test_tokens_of_a_prompt_of_embeddings_are_not_asked_for(proposer, padded):
    """By vllm-ascend's own methods: a prompt of four embeddings, and one of tokens, in chunks."""
    device = torch.device("npu")
    drafting = object.__new__(proposer)
    drafting.input_ids = torch.zeros(1, device=device)
    drafting.backup_next_token_ids = CpuGpuBuffer(
        2, dtype=torch.int32, device=device, pin_memory=False
    )
    unfinished = CpuGpuBuffer(2, dtype=torch.int64, device=device, pin_memory=False)
    unfinished.np[:] = [0, 1]
    drafting.runner = SimpleNamespace(
        discard_request_indices=unfinished, optimistic_seq_lens_cpu=torch.tensor([3, 3])
    )
    prompts = {"a": (None, torch.zeros(4, 2)), "b": ([7, 7, 7, 7], None)}
    requests = {
        name: CachedRequestState(
            name, tokens, [], None, None, ((),), 0, [], prompt_embeds=embeddings
        )
        for name, (tokens, embeddings) in prompts.items()
    }
    batch = SimpleNamespace(
        num_reqs=2, req_ids=["a", "b"], num_tokens_no_spec=np.array([4, 4]), vocab_size=100
    )
    if padded:
        sampled = torch.full((2, 2), -1, dtype=torch.int32, device=device)
        tokens, _ = drafting.prepare_next_token_ids_padded(
            sampled, requests, batch, unfinished.copy_to_gpu(), 2
        )
    else:
        tokens = drafting.prepare_next_token_ids_cpu([[], []], requests, batch, {"a": 3, "b": 3})
    assert tokens.tolist() == [0, 7]
    assert requests["a"].prompt_token_ids is None, "the runner's request was changed"


# A prompt in parts beside a draft is refused, and the engine answers all others.

MOST_TOKENS = 8
V2 = hosts.only_on("vllm_ascend_0_30", "0.23.0 runs model runner V1 alone")


@pytest.mark.host("0.23", cases=["v1"])
@pytest.mark.parametrize(
    "runner", [pytest.param({}, id="v1"), pytest.param(RUNNER_V2, id="v2", marks=V2)]
)
def test_it_is_refused_and_others_are_answered(runner):
    whole = text_prompts(model_directory(TARGET), 6)[2:]
    in_parts = [whole[0], whole[1][1:], whole[2][1:]]
    case = scenario(TARGET, TARGET, num_speculative_tokens=3, engine={"async_scheduling": True})
    rounds = [[*whole, in_parts], whole]
    asked = {"engine": case.engine_arguments(), "rounds": rounds, "max_tokens": MOST_TOKENS}
    first, second = programs.answer_of(probes.prompts_in_parts, asked, runner)
    expected = reference.greedy_tokens(model_directory(TARGET), whole, MOST_TOKENS)
    *answers, refusal = first
    assert answers == second == expected
    assert refusal.startswith("VLLMValidationError: the prompt was given in parts")
    assert "Send the whole prompt" in refusal

# SPDX-License-Identifier: Apache-2.0
"""What a request may ask for: the rest is refused with status 400 before it reaches a batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from reprlib import repr as shortened
from typing import TYPE_CHECKING, Any

import torch
from vllm.exceptions import VLLMValidationError

from mkv_ascend.adapters.installed import adapter
from mkv_ascend.adapters.patching import patch

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.sampling_params import SamplingParams


# Requests of a batch share tensors, so a number of one may reach the others, or end the engine
# for all. And vllm-ascend's copies of vLLM's batch and samplers leave out some of what vLLM has.

LARGEST = torch.finfo(torch.float32).max
"""Batches hold numbers in float32."""


def refuse_numbers(inputs: Mapping[str, Any], params: Any) -> None:
    """Refuse numbers that no batch can hold, of sampling and of a prompt's embeddings.

    Raises:
        VLLMValidationError: one is infinite or not a number, in float32 or in the model's dtype.
    """
    for name, value in _numbers(params):
        if not abs(value) <= LARGEST:
            raise _refusal(name, shortened(value), f"numbers of at most {LARGEST:.4g}", "send one")
    for part in (inputs, inputs.get("encoder_prompt"), inputs.get("decoder_prompt")):
        embeddings = part.get("prompt_embeds") if part else None
        if embeddings is not None and not bool(torch.isfinite(embeddings).all()):
            raise _refusal("prompt_embeds", "that are not finite", "finite numbers", "send those")


def _numbers(params: Any) -> Iterator[tuple[str, float]]:
    """Name and value of each number of sampling; ``extra_args`` are for other packages."""
    # vLLM imports its platform while it makes this module.
    from vllm.sampling_params import SamplingParams

    if isinstance(params, SamplingParams):
        for name in params.__struct_fields__:
            value = getattr(params, name)
            values = value.values() if name == "logit_bias" and value else [value]
            yield from ((name, one) for one in values if isinstance(one, int | float))


def _refusal(name: str, asked: Any, possible: str, change: str) -> VLLMValidationError:
    """A status of 400, in three parts."""
    return VLLMValidationError(
        f"The request asks for {name} {asked}. Possible: {possible}. "
        f"Change: {change}, or leave {name} out.",
        parameter=name,
    )


@patch(
    name="what requests may ask for",
    target=(
        "vllm.v1.engine.input_processor:InputProcessor.process_inputs",
        "vllm.platforms.interface:Platform.validate_request",
    ),
    reads=(
        "vllm.sampling_params:SamplingParams",
        "vllm.v1.sample.sampler:Sampler.forward",
        "vllm.v1.sample.logits_processor.builtin:MinTokensLogitsProcessor.apply",
        "vllm.v1.core.sched.utils:check_stop",
        "vllm.v1.worker.gpu.sample.logit_bias:LogitBiasState.add_request",
        "vllm.v1.worker.gpu.sample.bad_words:BadWordsState.add_request",
        "vllm.v1.worker.gpu.sample.states:SamplingStates.add_request",
    ),
)
def limit_requests(original: Callable[..., Any], processor: Any, *args: Any, **kwargs: Any) -> Any:
    """Make the request that the engine core is sent, unless it asks for what is not served."""
    request = original(processor, *args, **kwargs)
    if request.sampling_params is not None:
        ids, embeddings = request.prompt_token_ids, request.prompt_embeds
        prompt = embeddings if ids is None else ids
        refuse_sampling(request.sampling_params, len(prompt), processor.vllm_config)
    return request


def refuse_sampling(params: SamplingParams, prompt: int, config: VllmConfig) -> None:
    """Refuse what the batch or the samplers of this configuration cannot do.

    Args:
        params: as the engine core is to have them, with the tokens of bad words.
        prompt: tokens of the prompt.
        config: vLLM's.

    Raises:
        VLLMValidationError: with what is possible.
    """
    model = config.model_config
    vocabulary, room = model.get_vocab_size(), max(0, model.max_model_len - prompt)
    if params.min_tokens > room:
        raise _refusal("min_tokens", params.min_tokens, f"at most {room} here", "ask for fewer")
    for name in ("stop_token_ids", "allowed_token_ids"):
        # Stop tokens are columns of the logits while an answer is shorter than min_tokens.
        used = name != "stop_token_ids" or params.min_tokens
        outside = [one for one in getattr(params, name) or () if not 0 <= one < vocabulary]
        if used and outside:
            raise _refusal(
                name, shortened(outside), f"0 to {vocabulary - 1}", "name tokens of the model"
            )
    if getattr(config, "use_v2_model_runner", False):
        for name, asked, most in _room_of_v2(params):
            if asked > most:
                raise _refusal(name, asked, f"at most {most} on model runner V2", "ask for less")
    if config.speculative_config is not None:
        if params.logprob_token_ids:
            raise _refusal("logprob_token_ids", "beside drafts", "logprobs", "ask for logprobs")
        if params.thinking_token_budget is not None and not adapter().RULES.thinking_budgets:
            raise _refusal(
                "thinking_token_budget",
                f"{params.thinking_token_budget}, which vllm-ascend's batch does not have here",
                "max_tokens, or a newer vllm-ascend",
                "set max_tokens",
            )


def _room_of_v2(params: SamplingParams) -> Iterator[tuple[str, int, int]]:
    """Name, number of ids or value, and what a row of model runner V2 has room for."""
    from vllm import envs
    from vllm.v1.worker.gpu.sample import logit_bias

    yield "seed", params.seed or 0, 2**63 - 1
    allowed = len(params.allowed_token_ids or ())
    yield "allowed_token_ids", allowed, logit_bias.MAX_NUM_ALLOWED_TOKEN_IDS
    yield "logit_bias", len(params.logit_bias or ()), logit_bias.MAX_NUM_LOGIT_BIAS_TOKENS
    if params.min_tokens:
        stops = len(params.all_stop_token_ids)
        yield "stop_token_ids", stops, logit_bias.MAX_NUM_STOP_TOKEN_IDS
    words = sum(map(len, params.bad_words_token_ids or ()))
    yield "bad_words", words, envs.VLLM_MAX_BAD_WORDS_TOTAL_TOKENS


# Refuses requests whose prompt arrives in parts, beside a draft.
#
# The answer to a part ends a verify step anywhere: tokens behind the end were accepted, are cut,
# and have keys and states. vLLM goes on from there with the next part. With asynchronous
# scheduling another step of the request is under way by then.

REFUSAL = (
    "the prompt was given in parts (an asynchronous generator of StreamingInput, or /v1/realtime) "
    "to an engine that drafts. A prompt can be given whole, as often as it grows: with prefix "
    "caching what was there before is not computed again. Send the whole prompt, or serve prompts "
    "in parts from an engine without --speculative-config."
)


@patch(
    name="prompts in parts beside drafts",
    target="vllm.v1.engine.async_llm:AsyncLLM._add_streaming_input_request",
    reads=(
        "vllm.v1.engine.async_llm:AsyncLLM.add_request",
        "vllm.v1.core.sched.scheduler:Scheduler._update_request_as_session",
        "vllm.v1.core.sched.scheduler:Scheduler._handle_stopped_request",
        "vllm.v1.core.sched.async_scheduler:AsyncScheduler._update_request_with_output",
    ),
)
async def refuse_prompts_in_parts(original: Any, engine: Any, *args: Any, **kwargs: Any) -> Any:
    """As vLLM's where nothing drafts.

    Raises:
        VLLMValidationError: the engine drafts; for this request alone.
    """
    if engine.vllm_config.speculative_config is not None:
        raise VLLMValidationError(REFUSAL)
    return await original(engine, *args, **kwargs)


# Which positions of a batch hold tokens, where prompts may be given as embeddings.
#
# With ``--enable-prompt-embeds`` vLLM takes embeddings of the positions that its batch marks as
# tokens, and for all others what a request came with. With asynchronous scheduling model runner
# V1 marks one position a step, and a step with drafts has more: the target would read the
# embeddings of other rows there. Behind a prompt every position is a token.


def mark_tokens(runner: Any, step: Any) -> None:
    """Mark what ``step``, a ``SchedulerOutput``, schedules behind prompts as tokens.

    Called once the batch of the runner is that of the step.
    """
    if not (runner.enable_prompt_embeds and runner.num_spec_tokens):
        return
    batch = runner.input_batch
    for row, request in enumerate(batch.req_ids):
        computed = int(batch.num_computed_tokens_cpu[row])
        # With asynchronous scheduling drafts count as accepted until the device says otherwise.
        first = max(computed - runner.num_spec_tokens, int(batch.num_prompt_tokens[row]))
        batch.is_token_ids[row, first : computed + step.num_scheduled_tokens.get(request, 0)] = True

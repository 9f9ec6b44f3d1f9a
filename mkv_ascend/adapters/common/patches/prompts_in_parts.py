# SPDX-License-Identifier: Apache-2.0
"""Refuses requests whose prompt arrives in parts, beside a draft.

The answer to a part ends a verify step anywhere: tokens behind the end were accepted, are cut, and
have keys and states. vLLM goes on from there with the next part. With asynchronous scheduling
another step of the request is under way by then.
"""

from __future__ import annotations

from typing import Any

from vllm.exceptions import VLLMValidationError

from mkv_ascend.adapters.patching import patch

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

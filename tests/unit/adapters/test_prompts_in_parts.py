# SPDX-License-Identifier: Apache-2.0
"""Prompts in parts are refused beside drafts, and reach vLLM without one."""

from __future__ import annotations

import asyncio
import inspect
from types import SimpleNamespace
from typing import Any

import pytest
from vllm.exceptions import VLLMValidationError
from vllm.v1.engine.async_llm import AsyncLLM

from mkv_ascend.adapters.common.request_limits import refuse_prompts_in_parts


class Engine:
    """As much of ``AsyncLLM`` as takes a request."""

    errored = False

    def __init__(self, speculative: object) -> None:
        self.vllm_config = SimpleNamespace(
            speculative_config=speculative,
            cache_config=SimpleNamespace(kv_sharing_fast_prefill=False),
        )
        self.taken: list[Any] = []

    async def _took(self, *args: Any) -> str:
        self.taken.append(args)
        return "a queue"

    async def _add_streaming_input_request(self, *args: Any) -> Any:
        (function,) = refuse_prompts_in_parts.functions.values()
        return await function(type(self)._took, self, *args)


async def _parts() -> Any:
    yield "a part"


def asked(engine: Any) -> Any:
    """What vLLM's own ``add_request`` makes of a prompt in parts."""
    return asyncio.run(AsyncLLM.add_request(engine, "one", _parts(), SimpleNamespace(n=1)))


def test_a_prompt_in_parts_is_refused_beside_a_draft() -> None:
    engine = Engine(speculative=object())
    with pytest.raises(VLLMValidationError, match=r"in parts.*Send the whole prompt"):
        asked(engine)
    assert not engine.taken


def test_it_is_vllms_own_without_a_draft() -> None:
    engine = Engine(speculative=None)
    assert asked(engine) == "a queue"
    assert len(engine.taken) == 1


def test_vllm_takes_parts_nowhere_else() -> None:
    assert inspect.getsource(AsyncLLM).count("resumable=True") == 1

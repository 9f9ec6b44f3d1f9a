# SPDX-License-Identifier: Apache-2.0
"""A ``vllm serve`` process that is healthy, and what it completes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path

from examples.demo.server import START_SECONDS, Server, started, wait_until_healthy


@contextlib.contextmanager
def serve(
    arguments: list[str],
    log: Path,
    environment: Mapping[str, str] | None = None,
    start_seconds: float = START_SECONDS,
) -> Iterator[Server]:
    """``started``, once it is healthy; ServerFailedError where it is not in ``start_seconds``."""
    with started(arguments, log, environment) as server:
        wait_until_healthy(server, start_seconds=start_seconds)
        yield server


def complete(server: Server, model: str, prompt: str | list[int], max_tokens: int) -> list[int]:
    """Token ids of a greedy completion of a text, or of token ids, over HTTP."""
    from openai import DefaultHttpxClient, OpenAI

    client = OpenAI(
        base_url=server.openai_address,
        api_key="none",
        http_client=DefaultHttpxClient(trust_env=False),
    )
    extra = {"return_token_ids": True, "ignore_eos": True}
    completion = client.completions.create(
        model=model, prompt=prompt, max_tokens=max_tokens, temperature=0.0, extra_body=extra
    )
    tokens: list[int] = getattr(completion.choices[0], "token_ids")  # noqa: B009
    return tokens

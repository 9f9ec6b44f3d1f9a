# SPDX-License-Identifier: Apache-2.0
"""Sends requests to a server, many at once, and notes how each one ended."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from reliability.traffic import Request

ANSWERED, ABORTED, FAILED, HUNG = "answered", "aborted", "failed", "hung"
REFUSED = "refused"


@dataclass
class Answer:
    """What came back.

    Attributes:
        request: that was sent.
        outcome: ``ANSWERED`` whole, ``ABORTED`` by us, ``FAILED`` with an error of the server or
            of the connection, ``HUNG``: nothing came for too long, ``REFUSED`` with status 400, as
            a hostile request may be.
        tokens: of each choice, as far as they came.
        logprobs: of these tokens, where asked for.
        reason: why it failed.
        seconds: until its end.
        ended: the clock of ``time.monotonic`` then.
    """

    request: Request
    outcome: str = ANSWERED
    tokens: list[list[int]] = field(default_factory=list)
    logprobs: list[list[float]] = field(default_factory=list)
    reason: str = ""
    seconds: float = 0.0
    ended: float = 0.0

    def add(self, choices: Sequence[dict[str, Any]]) -> None:
        """Append what a message of the server holds."""
        for choice in choices:
            index = choice["index"]
            self.tokens[index] += choice.get("token_ids") or []
            said = choice.get("logprobs")
            if said:
                self.logprobs[index] += said["token_logprobs"]
            if choice.get("finish_reason") == "abort":
                raise _RefusedError("the server aborted it")


@dataclass(frozen=True)
class Target:
    """Whom requests are sent to.

    Attributes:
        address: ``http://127.0.0.1:PORT``.
        model: its name in requests.
        with_priority: whether the server takes priorities.
        hang_seconds: without a word of the server after which a request hangs.
    """

    address: str
    model: str
    with_priority: bool = False
    hang_seconds: float = 300.0


class _AbortedError(Exception):
    """The client has had enough."""


def send_all(
    target: Target,
    requests: Sequence[Request],
    at_once: int,
    on_answer: Callable[[Answer], None] = lambda answer: None,
) -> list[Answer]:
    """Send requests in their order, ``at_once`` of them open; the answers in that order."""
    return asyncio.run(send_each(target, requests, at_once, on_answer))


async def send_each(
    target: Target,
    requests: Sequence[Request],
    at_once: int,
    on_answer: Callable[[Answer], None] = lambda answer: None,
) -> list[Answer]:
    """As ``send_all``, in a loop that runs."""
    room = asyncio.Semaphore(at_once)
    # A connection of its own for each request: one that was closed is not used again.
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    async with aiohttp.ClientSession(connector=connector, trust_env=False) as session:

        async def one(request: Request) -> Answer:
            async with room:
                answer = await send(session, target, request)
            on_answer(answer)
            return answer

        return list(await asyncio.gather(*map(one, requests)))


async def send(session: aiohttp.ClientSession, target: Target, request: Request) -> Answer:
    """Send one request; never raises for what the server or the connection does."""
    answer = Answer(request, tokens=[[] for _ in range(request.choices)])
    answer.logprobs = [[] for _ in range(request.choices)]
    began = time.monotonic()
    patience = None
    if request.abort_after is not None and not request.stream:
        patience = max(0.05, request.abort_after / 10)
    try:
        await asyncio.wait_for(_exchange(session, target, answer), patience)
    except _AbortedError:
        answer.outcome = ABORTED
    except asyncio.TimeoutError:
        answer.outcome, answer.reason = HUNG, f"not a word for {target.hang_seconds:.0f} s"
        if patience is not None:
            answer.outcome, answer.reason = ABORTED, ""
    except (aiohttp.ClientError, ConnectionError, _RefusedError) as error:
        answer.outcome, answer.reason = FAILED, f"{type(error).__name__}: {error}"
    answer.ended = time.monotonic()
    answer.seconds = answer.ended - began
    return answer


class _RefusedError(Exception):
    """The server answered with an error."""


async def _exchange(session: aiohttp.ClientSession, target: Target, answer: Answer) -> None:
    timeout = aiohttp.ClientTimeout(total=None, sock_read=target.hang_seconds, sock_connect=30)
    async with session.post(
        f"{target.address}/v1/completions",
        json=answer.request.body(target.model, target.with_priority),
        timeout=timeout,
    ) as response:
        if response.status == 400 and answer.request.hostile:
            answer.outcome = REFUSED
            return
        if response.status != 200:
            raise _RefusedError(f"status {response.status}: {await response.text()}"[:300])
        await _read(response, answer)


async def _read(response: aiohttp.ClientResponse, answer: Answer) -> None:
    request = answer.request
    if not request.stream:
        answer.add((await response.json())["choices"])
        return
    done = False
    async for message in _messages(response):
        if message is None:
            done = True
            break
        if "error" in message:
            raise _RefusedError(str(message["error"])[:300])
        answer.add(message["choices"])
        if request.abort_after is not None and len(answer.tokens[0]) >= request.abort_after:
            raise _AbortedError
    if not done:
        raise _RefusedError("the stream ended without [DONE]")


async def _messages(response: aiohttp.ClientResponse) -> AsyncIterator[dict[str, Any] | None]:
    """Messages of a stream of events; None where the server says that it has ended."""
    async for line in response.content:
        if line.startswith(b"data: "):
            data = line.removeprefix(b"data: ").strip()
            yield None if data == b"[DONE]" else json.loads(data)

# SPDX-License-Identifier: Apache-2.0
"""How requests end is told as it was: answered, aborted by us, failed, or hung."""

import asyncio
import json
import threading
from collections.abc import Iterator

import pytest
from aiohttp import web

from reliability import client
from reliability.client import ABORTED, ANSWERED, FAILED, HUNG, REFUSED, Answer, Target
from reliability.traffic import Request


class Served:
    """A server that answers a prompt's first token as it is told to."""

    def __init__(self) -> None:
        self.bodies: list[dict[str, object]] = []
        self.address = ""
        self.closed = 0

    async def answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.bodies.append(body)
        kind, tokens = body["prompt"][0], list(range(body["max_tokens"]))
        if kind in (400, 500):
            return web.Response(status=kind, text="engine is dead")
        if not body["stream"]:
            await asyncio.sleep(30 if kind == 3 else 0)
            logprobs = {"token_logprobs": [-1.0] * len(tokens)} if "logprobs" in body else None
            choice = {"token_ids": tokens, "logprobs": logprobs}
            choices = [{**choice, "index": index} for index in range(body.get("n", 1))]
            return web.json_response({"choices": choices})
        response = web.StreamResponse()
        await response.prepare(request)
        for token in tokens:
            if kind == 2 and token == 2:
                await asyncio.sleep(30)
            if kind == 4 and token == 2:
                assert request.transport is not None
                request.transport.close()
                return response
            said = self.message(token)
            if kind == 5 and token == 2:
                said = {"error": "gone"}
            if kind == 7 and token == 2:
                said = {"choices": [{"index": 0, "token_ids": [], "finish_reason": "abort"}]}
            try:
                await response.write(f"data: {json.dumps(said)}\n\n".encode())
            except ConnectionError:
                self.closed += 1
                raise
            await asyncio.sleep(0.01)
        await response.write(b"" if kind == 6 else b"data: [DONE]\n\n")
        return response

    @staticmethod
    def message(token: int) -> dict[str, object]:
        return {"choices": [{"index": 0, "token_ids": [token], "logprobs": None}]}


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    server, ready = Served(), threading.Event()
    loop = asyncio.new_event_loop()

    async def start() -> None:
        application = web.Application()
        application.router.add_post("/v1/completions", server.answer)
        runner = web.AppRunner(application, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        host, port = runner.addresses[0][:2]
        server.address = f"http://{host}:{port}"
        ready.set()

    def run() -> None:
        loop.run_until_complete(start())
        loop.run_forever()
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    assert ready.wait(10)
    yield server
    loop.call_soon_threadsafe(loop.stop)
    thread.join(10)


def send(served: Served, *requests: Request, hang_seconds: float = 60.0) -> list[Answer]:
    target = Target(served.address, "m", with_priority=True, hang_seconds=hang_seconds)
    return client.send_all(target, requests, at_once=3)


def test_streams_and_whole_answers_are_read_to_their_end(served: Served) -> None:
    requests = [
        Request(0, (1, 9), 4, stream=True),
        Request(1, (1, 9), 4, choices=2, logprobs=True, priority=5),
        Request(2, (1,), 3, letters=True),
    ]
    stream, whole, letters = send(served, *requests)
    assert [answer.outcome for answer in (stream, whole, letters)] == [ANSWERED] * 3
    assert (stream.tokens, whole.tokens) == ([[0, 1, 2, 3]], [[0, 1, 2, 3]] * 2)
    assert whole.logprobs == [[-1.0] * 4] * 2
    bodies = {json.dumps(body["prompt"]) + str(body["stream"]): body for body in served.bodies}
    asked = bodies["[1, 9]False"]
    assert (asked["n"], asked["top_k"], asked["logprobs"], asked["priority"]) == (2, 1, 1, 5)
    assert bodies["[1, 9]True"]["temperature"] == 0.0
    assert bodies["[1]False"]["structured_outputs"] == {"regex": "[a-z ]{1000}"}


def test_hostile_requests_may_be_refused_and_others_may_not(served: Served) -> None:
    hostile = Request(0, (400,), 4, hostile="no temperature")
    refused, failed, dead = send(
        served, hostile, Request(1, (400,), 4), Request(2, (500,), 4, hostile="no temperature")
    )
    assert (refused.outcome, failed.outcome, dead.outcome) == (REFUSED, FAILED, FAILED)


def test_clients_that_close(served: Served) -> None:
    stream, whole = send(
        served,
        Request(0, (1,), 1000, stream=True, abort_after=3),
        Request(1, (3,), 4, abort_after=1),
    )
    assert (stream.outcome, whole.outcome) == (ABORTED, ABORTED)
    assert stream.tokens == [[0, 1, 2]]
    assert whole.seconds < 5


@pytest.mark.parametrize(
    ("kind", "outcome", "reason"),
    [
        (500, FAILED, "engine is dead"),
        (4, FAILED, ""),
        (5, FAILED, "gone"),
        (6, FAILED, "without [DONE]"),
        (7, FAILED, "aborted"),
        (2, HUNG, "not a word"),
    ],
    ids=["status", "closed", "error", "cut short", "aborted", "silent"],
)
def test_what_did_not_end_well(served: Served, kind: int, outcome: str, reason: str) -> None:
    # A crowded machine may be slow to answer; only who waits in vain need not wait for long.
    patience = 3.0 if outcome == HUNG else 60.0
    (answer,) = send(served, Request(0, (kind,), 5, stream=True), hang_seconds=patience)
    assert answer.outcome == outcome
    assert reason in answer.reason
    if kind not in (500, 6):
        assert answer.tokens == [[0, 1]]


def test_nobody_listens() -> None:
    (answer,) = client.send_all(Target("http://127.0.0.1:9", "m"), [Request(0, (1,), 2)], 1)
    assert answer.outcome == FAILED

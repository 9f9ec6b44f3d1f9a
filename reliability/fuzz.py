# SPDX-License-Identifier: Apache-2.0
"""Any request over HTTP: no error of the server's that vllm-ascend without a draft has not.

Calls are generated from the server's own OpenAPI schema, half of them against it, and from a seed;
before them come those that ask for what no batch can hold, beside requests whose tokens are judged.
Some of these end an engine of stock, which is not sent them.
The same calls go to three servers, one after another: vllm-ascend without the plugin, the plugin
without a draft, and the plugin with it. Checked is that

- no call is answered with a status of 500 or above, dropped, or left waiting for 60 seconds, unless
  vllm-ascend by itself does that to the same call;
- afterwards the server is healthy, has nothing left of the calls, and gives the right tokens;
- it ends at SIGTERM, with nothing left behind.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import aiohttp

from examples.demo.server import Server, started, wait_until_healthy
from reliability import client, load, served, traffic
from reliability.calls import Call, generate
from reliability.client import Target
from reliability.processes import Watched
from reliability.tokens import Judge
from tests.support.stock import STOCK

HANG_SECONDS = 60.0
AT_ONCE = 4
REQUESTS_AFTERWARDS = 8
HUNG, DROPPED = "hung", "dropped"
STOCK_NAME, PLAIN, DRAFTING = "vllm-ascend", "the plugin", "the plugin with a draft"


@dataclass
class Findings:
    """What one server did.

    Attributes:
        name: which it was.
        outcomes: number of each status; ``HUNG``, and ``DROPPED``: no answer came.
        errors: calls that were answered by an error of the server's, and how.
        problems: what is wrong.
        of_vllm: what is wrong with vllm-ascend without the plugin.
    """

    name: str
    outcomes: dict[str, int] = field(default_factory=dict)
    errors: dict[int, str] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    of_vllm: list[str] = field(default_factory=list)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the options of the command on ``parser``."""
    load.add_server_arguments(parser)
    parser.set_defaults(no_draft=False, stock=False)  # each of these is called, and the pair too
    parser.add_argument("--examples", type=int, default=20, help="of each operation and kind (20)")


def run(asked: argparse.Namespace) -> int:
    """Call the servers and compare; returns the exit status."""
    setting = load.setting_of(asked)
    servers = {
        STOCK_NAME: replace(setting, with_draft=False, variables={**setting.variables, **STOCK}),
        PLAIN: replace(setting, with_draft=False),
        DRAFTING: setting,
    }
    calls: list[Call] = []
    found: list[Findings] = []
    with tempfile.TemporaryDirectory(prefix="reliability") as temporary:
        folder = asked.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        for number, (name, one) in enumerate(servers.items()):
            log = folder / f"server{number}.log"
            found.append(_called(name, one, calls, log, asked))
    of_stock = found[0].errors
    for findings in found:
        findings.problems += new_errors(findings, of_stock, calls)
        _tell(findings)
    if asked.json:
        print(json.dumps([asdict(findings) for findings in found], indent=1))
    return 1 if any(findings.problems for findings in found) else 0


def new_errors(found: Findings, of_stock: dict[int, str], calls: Sequence[Call]) -> list[str]:
    """Errors of a server that vllm-ascend by itself does not give to the same call."""
    return [
        f"{outcome}: {calls[number].describe()}"
        for number, outcome in found.errors.items()
        if number not in of_stock
    ]


def _called(
    name: str, setting: served.Setting, calls: list[Call], log: Path, asked: argparse.Namespace
) -> Findings:
    """Start a server, generate the calls if there are none yet, and send them to it."""
    found = Findings(name)
    judge = Judge(setting.reference)
    with (
        load.server_files() as files,
        started(setting.arguments(), log, setting.environment(files)) as server,
    ):
        watched = Watched(server.process.pid, files)
        wait_until_healthy(server)
        if not calls:
            schema = asyncio.run(_fetched(f"{server.address}/openapi.json"))
            calls += generate(schema, setting.model, asked.examples, asked.seed, _say)
        sent = [call for call in calls if not (call.hostile and name == STOCK_NAME)]
        _say(f"{name}: {len(sent)} calls")
        outcomes, beside = asyncio.run(_send_beside(server, setting, sent, asked.seed))
        found.outcomes = dict(Counter(outcomes))
        found.errors = {
            call.number: outcome
            for call, outcome in zip(sent, outcomes, strict=True)
            if is_error(outcome)
        }
        problems = found.of_vllm if name == STOCK_NAME else found.problems
        problems += [f"beside the calls: {one}" for one in load.problems_of(beside, judge)]
        try:
            problems += _afterwards(server, setting, judge, asked.seed)
        except OSError as error:
            problems.append(f"no answer of the server: {error}; see {server.log}")
        end = load.Findings()
        load.end(server, watched, end)
        problems += end.problems
    return found


def is_error(outcome: str) -> bool:
    """Whether a status, or what came in its place, is an error of the server's."""
    return outcome in (HUNG, DROPPED) or int(outcome) >= 500


def _afterwards(server: Server, setting: served.Setting, judge: Judge, seed: int) -> list[str]:
    """What is wrong with a server that has been called."""
    found = load.idle_problems(server)
    requests = _judged_requests(setting, seed)
    target = Target(server.address, setting.model, setting.priorities)
    answers = client.send_all(target, requests, AT_ONCE)
    return [*found, *(f"afterwards: {one}" for one in load.problems_of(answers, judge))]


def _judged_requests(setting: served.Setting, seed: int) -> list[traffic.Request]:
    """Requests whose tokens are judged, and which no client ends."""
    text = traffic.text_of(setting.reference)
    return [
        replace(traffic.draw(seed, number, text, served.LONGEST, False), abort_after=None)
        for number in range(REQUESTS_AFTERWARDS)
    ]


async def _send_beside(
    server: Server, setting: served.Setting, calls: Sequence[Call], seed: int
) -> tuple[list[str], list[client.Answer]]:
    """Outcomes of the calls, and answers of judged requests that run while they begin."""
    target = Target(server.address, setting.model, setting.priorities)
    requests = _judged_requests(setting, seed)
    return await asyncio.gather(
        _send_all(server.address, calls), client.send_each(target, requests, AT_ONCE)
    )


async def _fetched(address: str) -> Any:
    async with aiohttp.ClientSession(trust_env=False) as session, session.get(address) as answer:
        return await answer.json()


async def _send_all(address: str, calls: Sequence[Call]) -> list[str]:
    room = asyncio.Semaphore(AT_ONCE)
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    async with aiohttp.ClientSession(connector=connector, trust_env=False) as session:

        async def one(call: Call) -> str:
            async with room:
                return await _outcome(session, address, call)

        return list(await asyncio.gather(*map(one, calls)))


async def _outcome(session: aiohttp.ClientSession, address: str, call: Call) -> str:
    """The status of the answer, which is read to its end."""
    url, headers = f"{address}{call.path}", {"Content-Type": "application/json"}

    async def exchange() -> str:
        asked = session.request(call.method, url, data=call.data, headers=headers)
        async with asked as answer:
            await answer.read()
            return str(answer.status)

    try:
        return await asyncio.wait_for(exchange(), HANG_SECONDS)
    except asyncio.TimeoutError:
        return HUNG
    except (aiohttp.ClientError, ConnectionError):
        return DROPPED


def _tell(found: Findings) -> None:
    counts = ", ".join(f"{count} x {name}" for name, count in sorted(found.outcomes.items()))
    _say(f"{found.name}: {counts}; {len(found.problems)} problems")
    for problem in found.problems:
        _say(f"  {problem}")
    for problem in found.of_vllm:
        _say(f"  vLLM's: {problem}")


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)

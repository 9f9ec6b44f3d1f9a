# SPDX-License-Identifier: Apache-2.0
"""Does a fault to a server under load, and says what became of it."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import subprocess
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit

from examples.demo.server import Server, started, wait_until_healthy
from reliability import client, load, served, traffic
from reliability.client import Answer, Target
from reliability.fault_cases import CLOCK, FULL, LOST, READER, SIGSTOP, SIGTERM, SPOILING, Case
from reliability.fault_verdicts import HANG_SECONDS, Verdict, hung, unanswered, waits
from reliability.machine import Machine
from reliability.processes import Watched
from reliability.tokens import Judge
from reliability.traffic import Request

GONE_SECONDS = 45.0
"""How long processes of a server that died are waited for."""
REQUESTS = 16
NO_JSON = "Out of range float values are not JSON compliant"
"""What vLLM tells a client whose logprobs are not numbers."""
THE_MACHINE = Machine()
"""Nothing of the server's own."""
FAULTS_VARIABLE = "EMULATED_NPU_FAULTS"


class FaultyServer:
    """A server that is started again where a fault has ended it.

    Args:
        setting: how it is started.
        folder: for logs, and for what tells the device of faults.
        machine: what it sees of the machine.
        requests: that are sent to it at once.
    """

    def __init__(
        self,
        setting: served.Setting,
        folder: Path,
        machine: Machine = THE_MACHINE,
        requests: int = REQUESTS,
    ) -> None:
        self._sent = requests
        self._faults = folder / "faults.json"
        self._machine = machine
        faults = {FAULTS_VARIABLE: str(self._faults)}
        variables = {**setting.variables, **faults, **machine.variables}
        self._setting = replace(setting, variables=variables)
        self._folder = folder
        self._judge = Judge(setting.reference)
        self._running = contextlib.ExitStack()
        self._server: Server | None = None
        self._watched: Watched | None = None
        self._starts = 0
        self._start_seconds = 0.0

    def __enter__(self) -> FaultyServer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._running.close()

    def judge(self, case: Case, restart: bool = True) -> Verdict:
        """Do the fault to a server that works, and look at it until it ends or works again.

        Args:
            restart: whether one that ended is started again, and asked the same.
        """
        if case.at_start:
            return self._judge_start(case)
        server, watched = self._ready()
        verdict = Verdict(case.describe())
        requests = self._requests(case)
        with ThreadPoolExecutor(1) as threads:
            sent = threads.submit(self._send, server, requests)
            before = self._faults_done(server)
            time.sleep(case.moment)
            watched.look()
            at = time.monotonic()
            self._do(case, server, watched, sent)
            if case.is_of_device:
                verdict.reached = self._wait_for_fault(server, sent, before)
                at = time.monotonic()
                if verdict.reached:
                    self._faults.unlink()
                else:
                    # A device that has read the file waits for its launch, though it is gone.
                    self._ask_for([])
            answers = sent.result()
        verdict.requests = dict(Counter(answer.outcome for answer in answers))
        verdict.problems += self._wrong_tokens(case, answers)
        # Where vLLM's engine core is asked to end, by its server or directly, its requests end with
        # it; the server waits for connections of clients whom nobody tells.
        waits(case, verdict).extend(hung(answers, at))
        ends = case.is_deadly or (case.may_be_deadly and bool(unanswered(answers)))
        if ends and verdict.reached:
            self._look_at_the_end(case, verdict, server, watched, at)
            self._stop()
        else:
            for problem in unanswered(answers):
                told = case.fault in SPOILING and NO_JSON in problem
                (verdict.of_vllm if told else verdict.problems).append(problem)
            verdict.problems += self._left_of_requests(server)
        if case.is_unheard or case.is_noticed_late:
            self._stop()  # a rank has missed a step, or its device is not well
        if restart or self._server is not None:
            verdict.problems += self._works_again(case, requests)
        return verdict

    def _judge_start(self, case: Case) -> Verdict:
        """Hit a server that starts, look at its end, and start it again."""
        if not self._start_seconds:
            self._ready()
        self._stop()
        verdict = Verdict(case.describe())
        if case.is_of_device:
            self._ask_the_device(case)
        server, watched = self._begin()
        verdict.reached = self._hit_the_start(case, server, watched)
        at = time.monotonic()
        if verdict.reached:
            self._look_at_the_end(case, verdict, server, watched, at)
        self._faults.unlink(missing_ok=True)
        self._stop()
        verdict.problems += self._works_again(case, self._requests(case))
        return verdict

    def _hit_the_start(self, case: Case, server: Server, watched: Watched) -> bool:
        """Whether the fault took place before the server was healthy."""
        until = time.monotonic() + case.moment * self._start_seconds
        while server.process.poll() is None and not _is_healthy(server):
            watched.look()
            if case.is_of_device:
                if self._faults_done(server):
                    return True
            elif time.monotonic() >= until and (victim := watched.first(case.victim)):
                victim.send_signal(getattr(signal, case.fault))
                return True
            time.sleep(0.05)
        return case.is_of_device and self._faults_done(server) > 0

    def _ready(self) -> tuple[Server, Watched]:
        """The server, started if there is none."""
        if self._server is None or self._watched is None:
            began = time.monotonic()
            server, watched = self._begin()
            wait_until_healthy(server)
            self._start_seconds = time.monotonic() - began
            self._server, self._watched = server, watched
            watched.look()
        return self._server, self._watched

    def _begin(self) -> tuple[Server, Watched]:
        """A server that starts."""
        self._starts += 1
        files = self._running.enter_context(load.server_files())
        log = self._folder / f"server{self._starts}.log"
        environment = self._setting.environment(files)
        arguments = self._setting.arguments()
        starting = started(arguments, log, environment, self._machine.command)
        server = self._running.enter_context(starting)
        return server, Watched(server.process.pid, files)

    def _stop(self) -> None:
        self._running.close()
        self._running, self._server, self._watched = contextlib.ExitStack(), None, None

    def _requests(self, case: Case) -> list[Request]:
        text = traffic.text_of(self._setting.reference)
        longest, grammars = served.LONGEST, self._setting.served.grammars
        drawn = [
            traffic.draw(case.number, number, text, longest, grammars)
            for number in range(self._sent)
        ]
        return [
            replace(one, max_tokens=min(48, longest - len(one.prompt)), abort_after=None)
            for one in drawn
        ]

    def _target(self, server: Server) -> Target:
        # Longer than a process stands still, and than a reply takes here.
        silence = HANG_SECONDS + 10
        return Target(server.address, self._setting.model, self._setting.priorities, silence)

    def _send(self, server: Server, requests: Sequence[Request]) -> list[Answer]:
        return client.send_all(self._target(server), requests, len(requests))

    def _do(self, case: Case, server: Server, watched: Watched, sent: Future[list[Answer]]) -> None:
        if case.is_of_device:
            self._ask_the_device(case)
        elif case.fault == READER:
            with _stalled(server, self._setting.model):
                sent.result()
        elif case.fault in (CLOCK, FULL):
            self._do_to_the_machine(case, server, sent)
        else:
            victim = watched.first(case.victim)
            assert victim is not None, f"no process is the {case.victim}"
            victim.send_signal(getattr(signal, case.fault))
            if case.fault == SIGSTOP:
                time.sleep(case.seconds)
                victim.send_signal(signal.SIGCONT)

    def _do_to_the_machine(self, case: Case, server: Server, sent: Future[list[Answer]]) -> None:
        """Let the clock jump, until all are answered, or fill shared memory for some seconds."""
        if case.fault == CLOCK:
            self._machine.set_clock(case.seconds)
            sent.result()
            self._machine.set_clock(0.0)
            return
        full = self._machine.fill(server.process.pid)
        time.sleep(case.seconds)
        with contextlib.suppress(OSError):
            full.unlink()  # where the server has died, it is gone

    def _ask_the_device(self, case: Case) -> None:
        asked = {"operator": case.operator, "launch": case.launch, "fault": case.fault}
        asked |= {"times": case.times, "seconds": case.seconds or 1.0, "process": case.process}
        self._ask_for([asked])

    def _ask_for(self, faults: list[dict[str, Any]]) -> None:
        """Ask for these faults from the next launch on, and for no other ones."""
        aside = self._faults.with_suffix(".new")
        aside.write_text(json.dumps(faults))
        aside.replace(self._faults)

    def _wait_for_fault(self, server: Server, sent: Future[list[Answer]], before: int) -> bool:
        """Whether the device did what it was asked for, which its log says."""
        while not sent.done():
            if self._faults_done(server) > before:
                return True
            time.sleep(0.05)
        return self._faults_done(server) > before

    def _left_of_requests(self, server: Server) -> list[str]:
        """What a server that should live has not given back."""
        try:
            return load.idle_problems(server)
        except OSError as error:
            self._stop()
            return [f"the server does not answer any more: {error}"]

    @staticmethod
    def _faults_done(server: Server) -> int:
        return server.log.read_text(errors="replace").count("emulated NPU: asked-for ")

    def _wrong_tokens(self, case: Case, answers: Sequence[Answer]) -> list[str]:
        if case.fault in SPOILING:
            return []
        return [problem for answer in answers for problem in self._judge.problems(answer)]

    def _look_at_the_end(
        self, case: Case, verdict: Verdict, server: Server, watched: Watched, at: float
    ) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            server.process.wait(HANG_SECONDS)
        verdict.status = server.process.poll()
        if verdict.status is None:
            lives = f"the server lives on {HANG_SECONDS:.0f} s after the fault"
            waits(case, verdict).append(lives)
            server.process.send_signal(signal.SIGTERM)
        elif verdict.status == 0 and (case.fault, case.victim) != (SIGTERM, "server"):
            # vLLM's server ends itself as if it had been asked to once its engine is dead.
            verdict.of_vllm.append("exit status 0 of a server that died")
        _, left = watched.wait_until_gone(GONE_SECONDS)
        verdict.sockets = len(watched.sockets())
        verdict.gone = time.monotonic() - at
        # vLLM's engine core waits for requests of an API server that was killed.
        is_vllms = case.victim == "server" or case.is_unheard
        if left:
            found = verdict.of_vllm if is_vllms else verdict.problems
            found.append(f"left after {verdict.gone:.0f} s: {', '.join(left)}")
        elif verdict.gone > HANG_SECONDS:
            waits(case, verdict).append(f"processes lived on for {verdict.gone:.0f} s")
        if files := watched.left_behind():
            # Of the queues between vLLM's engine core and its workers, who may live on with them.
            live_on = bool(left) and is_vllms
            found = verdict.of_vllm if live_on or case.victim == "worker" else verdict.problems
            found.append(f"left behind: {', '.join(files)}")

    def _works_again(self, case: Case, requests: Sequence[Request]) -> list[str]:
        """The same requests, of the server that lives on or of one that is started again."""
        server, _ = self._ready()
        if case.fault in (*SPOILING, LOST):
            # Blocks that hold what is wrong may be hit by prompts that begin alike.
            _post(server, "reset_prefix_cache")
        answers = self._send(server, requests[:5])
        found = unanswered(answers)
        found += [problem for answer in answers for problem in self._judge.problems(answer)]
        return [f"afterwards: {problem}" for problem in found]


def _is_healthy(server: Server) -> bool:
    return "Application startup complete" in server.log.read_text(errors="replace")


def _post(server: Server, path: str) -> None:
    import urllib.request

    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    request = urllib.request.Request(f"{server.address}/{path}", method="POST")
    with direct.open(request, timeout=HANG_SECONDS):
        pass


@contextlib.contextmanager
def _stalled(server: Server, model: str) -> Any:
    """A client that asked for a long stream and reads no more than its beginning."""
    address = urlsplit(server.address)
    body = json.dumps(
        {
            "model": model,
            "prompt": [65] * 20,
            "max_tokens": 400,
            "temperature": 0.0,
            "ignore_eos": True,
            "stream": True,
            "logprobs": 5,
        }
    )
    with socket.socket() as stalled:
        # So small that the server cannot write all that it has.
        stalled.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        stalled.connect((address.hostname, address.port))
        head = f"POST /v1/completions HTTP/1.1\r\nHost: {address.netloc}\r\n"
        head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        stalled.sendall((head + body).encode())
        stalled.recv(64)
        yield

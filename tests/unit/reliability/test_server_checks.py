# SPDX-License-Identifier: Apache-2.0
"""What is checked of a server notices what is wrong: tokens, processes, files and metrics."""

import argparse
import contextlib
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.error import URLError

import pytest

from reliability import load, served, tokens
from reliability.client import ABORTED, ANSWERED, FAILED, Answer
from reliability.draws import Draws
from reliability.fault_running import FaultyServer
from reliability.processes import Watched
from reliability.tokens import Judge
from reliability.traffic import Request

SPACE = ord(" ")


@pytest.fixture
def judge(monkeypatch: pytest.MonkeyPatch) -> Judge:
    """Hugging Face says after a token the next number, and as a letter a space."""
    import torch

    def logits_of(folder: Path, ids: list[int]) -> torch.Tensor:
        rows = torch.zeros(len(ids), 300)
        for position, token in enumerate(ids):
            rows[position, (token + 1) % 200] = 9.0
            rows[position, SPACE] += 5.0
            # As good as the first choice, to rounding.
            rows[position, 250] = 9.0 - 1e-5
        return rows

    monkeypatch.setattr(tokens.reference, "logits_of", logits_of)
    monkeypatch.setattr(tokens.engine, "compared_dtype", lambda: "float32")
    return Judge(Path("/models/m"))


def answered(request: Request, *given: list[int], outcome: str = ANSWERED) -> Answer:
    return Answer(request, outcome, list(given), [[] for _ in given])


def test_tokens_are_judged_in_each_choice_and_of_aborted_requests(judge: Judge) -> None:
    request = Request(3, (1, 2), 4, choices=2)
    assert judge.problems(answered(request, [3, 4, 5, 6], [3, 4, 5, 6])) == []
    (problem,) = judge.problems(answered(request, [3, 4, 5, 6], [3, 4, 7, 8]))
    assert problem == "request 3, choice 1: token 2 is 7, Hugging Face says 5"
    (problem,) = judge.problems(answered(request, [3, 4, 5], [3, 4, 5, 6]))
    assert "3 tokens, not 4" in problem
    one = replace(request, choices=1)
    assert judge.problems(answered(one, [3, 4], outcome=ABORTED)) == []
    assert len(judge.problems(answered(one, [3, 5], outcome=ABORTED))) == 1
    assert len(judge.problems(answered(one, [3, 4, 5, 6, 7], outcome=ABORTED))) == 1
    # Behind a token that is as good as the first choice, others are right.
    assert judge.problems(answered(one, [3, 250, 51, 52])) == []
    assert judge.problems(answered(one, [3, 4, 5, 6])) == []
    judge.near_ties = 0
    # What was judged of one answer is not taken for another.
    assert len(judge.problems(answered(one, [4, 5, 6, 7]))) == 1
    assert judge.near_ties == 0
    assert judge.problems(answered(one, [250, 51, 52, 53])) == []
    assert judge.near_ties == 1


def test_letters_are_judged_among_letters(judge: Judge) -> None:
    request = Request(0, (1,), 2, letters=True)
    assert judge.problems(answered(request, [SPACE, SPACE])) == []
    assert len(judge.problems(answered(request, [2, SPACE]))) == 1


def test_logprobs_are_hugging_faces(judge: Judge) -> None:
    request = Request(0, (1,), 2, logprobs=True)
    import torch

    row = torch.zeros(300)
    row[2], row[SPACE], row[250] = 9.0, 5.0, 9.0 - 1e-5
    said = float(row.log_softmax(-1)[2])
    right = [[said, said]]
    answer = Answer(request, ANSWERED, [[2, 3]], right)
    assert judge.problems(answer) == []
    assert "logprob 1" in judge.problems(replace(answer, logprobs=[[said, said + 0.01]]))[0]
    assert "1 logprobs" in judge.problems(replace(answer, logprobs=[[said]]))[0]


def test_draws_are_judged_among_the_likeliest_and_by_how_often_they_come(judge: Judge) -> None:
    request = Request(0, (1,), 1, likeliest=2, temperature=0.5)
    # Of 2 and 250, which are alike, and 32 with 5.0.
    assert judge.problems(answered(request, [250])) == []
    (problem,) = judge.problems(answered(request, [SPACE]))
    assert problem == "request 0, choice 0: token 0 is 32, none of 2 likeliest"
    assert judge.draws.count == 1
    # The two are drawn alike, so neither says anything.
    assert abs(judge.draws.excess) < 1e-4


def test_a_request_with_an_adapter_is_judged_by_the_target_with_it(
    judge: Judge, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    asked = []

    def logits_of(folder: Path, ids: list[int]) -> torch.Tensor:
        asked.append(folder)
        return torch.zeros(len(ids), 300)

    monkeypatch.setattr(tokens.reference, "logits_of", logits_of)
    judge = Judge(Path("/models/m"), {"a": Path("/adapted")})
    for adapter in ("a", ""):
        judge.problems(answered(Request(0, (1,), 2, adapter=adapter), [2, 3]))
    assert asked == [Path("/adapted"), Path("/models/m")]


def test_a_failed_request_is_a_problem_whatever_came(judge: Judge) -> None:
    answers = [answered(Request(0, (1,), 2), [2], outcome=FAILED)]
    (problem,) = load.problems_of(answers, judge)
    assert problem.startswith("request 0 failed")


def metrics(**values: float) -> Any:
    names = {"running": "num_requests_running", "waiting": "num_requests_waiting"}
    names["usage"] = "kv_cache_usage_perc"
    figures = {f"vllm:{name}": values.get(key, 0.0) for key, name in names.items()}
    return SimpleNamespace(metrics=lambda: figures)


@pytest.mark.parametrize("what", ["running", "waiting", "usage"])
def test_an_idle_server_has_nothing_left(what: str) -> None:
    assert load.idle_problems(metrics(), 0.0) == []
    assert len(load.idle_problems(metrics(**{what: 0.1}), 0.0)) == 1


PROGRAM = """
import os, signal, subprocess, sys, time
from multiprocessing import shared_memory, resource_tracker
signal.signal(signal.SIGTERM, lambda *_: os._exit(int(sys.argv[2])))
if "child" in sys.argv[3]:
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(100)"])
if "memory" in sys.argv[3]:
    kept = shared_memory.SharedMemory(create=True, size=100)
    resource_tracker.unregister(kept._name, "shared_memory")
import socket
kept_socket = socket.socket(socket.AF_UNIX)
kept_socket.bind(sys.argv[1] + "/socket")
print("ready", flush=True)
time.sleep(100)
"""


@pytest.fixture
def start(tmp_path: Path) -> Any:
    """Starts a process in a session of its own, which leaves behind what it is told to."""
    started = []

    def begin(status: int, leaves: str) -> tuple[Any, Watched]:
        arguments = [str(tmp_path), str(status), leaves]
        process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, *arguments],
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        assert process.stdout is not None
        process.stdout.readline()
        started.append(Watched(process.pid, tmp_path))
        return SimpleNamespace(process=process), started[-1]

    yield begin
    for watched in started:
        for process in watched.alive():
            process.kill()
        for name in watched.shared:
            Path(name).unlink(missing_ok=True)


@pytest.mark.parametrize(
    ("status", "leaves", "expected"),
    [
        (0, "", None),
        (3, "", "exit status 3"),
        (0, "child", "left after"),
        (0, "memory", "/dev/shm/"),
    ],
)
def test_what_outlives_a_server_is_found(
    start: Callable[[int, str], Any],
    monkeypatch: pytest.MonkeyPatch,
    status: int,
    leaves: str,
    expected: str | None,
) -> None:
    monkeypatch.setattr(load, "END_SECONDS", 2)
    server, watched = start(status, leaves)
    assert sum(watched.look().values()) > 1e6
    found = load.Findings()
    load.end(server, watched, found)
    assert found.sockets == 1
    if expected is None:
        assert found.problems == []
        assert found.ended[0] == 0
    else:
        assert any(expected in problem for problem in found.problems)
        assert len(found.problems) == 1


def loaded(
    monkeypatch: pytest.MonkeyPatch, folder: Path, asked: dict[str, Any], **server: Any
) -> load.Findings:
    """What is found of a server that is not there, under 40 requests in rounds of 20."""
    log = folder / "server.log"
    log.touch()
    process = SimpleNamespace(pid=0, poll=lambda: 1, returncode=1)
    given = SimpleNamespace(process=process, address="http://a", log=log, **server)
    monkeypatch.setattr(load, "started", lambda *_: contextlib.nullcontext(given))
    monkeypatch.setattr(load, "wait_until_healthy", lambda _: None)
    monkeypatch.setattr(load, "Watched", lambda *_: SimpleNamespace(look=dict))
    monkeypatch.setattr(load, "end", lambda *_: None)
    judge = SimpleNamespace(checked=0, near_ties=0, draws=Draws())
    monkeypatch.setattr(load, "Judge", lambda *_: judge)
    setting: Any = SimpleNamespace(
        reference=folder,
        arguments=list,
        environment=lambda _: {},
        served=served.PAIRS["dense"],
        model="m",
        priorities=False,
        with_draft=False,
        adapters={},
    )
    monkeypatch.setattr(load, "_drawn", lambda *_: [])
    options = {"keep": None, "seed": 0, "at_once": 1, "spoil": None, "trace_memory": False, **asked}
    return load.under_load(setting, argparse.Namespace(requests=40, round=20, **options), folder)


def test_a_server_that_answers_no_more_is_a_problem(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Its requests fail, and so do its metrics, which end the run and no more."""

    def refused() -> dict[str, float]:
        raise URLError("connection refused")

    kept = tmp_path / "kept"
    found = loaded(monkeypatch, tmp_path, {"keep": kept}, metrics=refused)
    assert found.problems[0].startswith("no answer of the server: ")
    assert "the server ended by itself with 1" in found.problems
    assert not kept.exists()
    assert found.grown == []


def test_a_server_that_is_gone_unasked_is_a_problem_and_no_end_of_the_program(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuses(server: Any) -> list[str]:
        raise URLError("refused")

    monkeypatch.setattr(load, "idle_problems", refuses)
    stopped: list[bool] = []
    faulty: Any = SimpleNamespace(_stop=lambda: stopped.append(True))
    gone: Any = None
    (problem,) = FaultyServer._left_of_requests(faulty, gone)
    assert "does not answer any more" in problem
    assert stopped == [True]

# SPDX-License-Identifier: Apache-2.0
"""A real server under load over HTTP: every token judged, nothing lost, nothing left behind.

Starts `vllm serve` with a tiny target and a draft and sends requests drawn from a seed, many at
once: prompts of 1 to 384 tokens, some with a beginning in common or the same again; streamed and
whole; several choices; drawn at random; logprobs; a grammar; with --adapters those of the target;
clients that close the connection; some that ask for what no batch can hold, such as no number; a
KV cache so small that requests are preempted. Then it checks that

- each request was answered, or aborted by its client, and each token is Hugging Face's greedy one,
  or of the likeliest; what was drawn at random comes as often as Hugging Face's probabilities say;
- the server runs and waits for no request, and uses no block of its KV cache;
- in a long run, no process grows by more than 1 MB an hour;
- requests were preempted, and draft tokens were accepted;
- the server ends at SIGTERM with no process and no shared memory left behind.

With --spoil the weights of the draft are NaN, infinite or those of no model. Then the tokens must
be right all the same, and the server must say once that its draft is worthless.

With --keep FILE it notes each round; the same command goes on behind the last one.

With --trace-memory it says which lines of the engine's Python hold more and more.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from examples.demo.server import Server, started, wait_until_healthy
from mkv_ascend.drafting.counts import LEAST, PROPOSALS
from reliability import adapters, client, levels, served, traffic
from reliability.client import ABORTED, ANSWERED, REFUSED, Answer, Target
from reliability.draws import Draws
from reliability.held_memory import WORKER, Growth
from reliability.processes import Watched, megabytes
from reliability.spoiling import SPOILED, spoiled
from reliability.tokens import Judge
from reliability.traffic import Request
from tests.support.adapters import widened
from tests.support.stock import STOCK

WORTHLESS = "The draft is worthless"
IDLE_SECONDS = 60
END_SECONDS = 60


@dataclass
class Findings:
    """What a run found.

    Attributes:
        requests: number of each outcome.
        tokens: that came.
        checked: of them that were judged; ``near_ties``: as good as the first choice.
        draws: of them that were drawn at random.
        preemptions, drafted, accepted: what the server counted.
        memory: MB of each process, after each round; ``times``: seconds until then, in all.
        grew: of each process MB an hour behind the warm-up, and the seconds of that.
        ended: exit status after SIGTERM, and after how many seconds the last process was gone.
        sockets: files of sockets that are left, as vLLM leaves them without the plugin too.
        grown: what of the engine's memory grows with requests, where it was traced.
        problems: what is wrong; empty where all is right.
    """

    requests: dict[str, int] = field(default_factory=dict)
    tokens: int = 0
    checked: int = 0
    near_ties: int = 0
    draws: Draws = field(default_factory=Draws)
    preemptions: int = 0
    drafted: int = 0
    accepted: int = 0
    memory: list[dict[str, float]] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    grew: dict[str, tuple[float, float]] = field(default_factory=dict)
    ended: tuple[int | None, float] = (None, 0.0)
    seconds: float = 0.0
    sockets: int = 0
    grown: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the options of the command on ``parser``."""
    add_server_arguments(parser)
    add_choice_of_server(parser)
    parser.add_argument("--spoil", choices=[*SPOILED], help="the draft's weights")
    parser.add_argument("--adapters", type=int, default=0, help="LoRA, of the target (0)")
    parser.add_argument("--requests", type=int, default=200, help="how many (200)")
    parser.add_argument("--round", type=int, default=100, help="judged at a time (100)")
    parser.add_argument("--at-once", type=int, default=12, help="open requests (12)")
    parser.add_argument(
        "--running",
        type=int,
        default=served.REQUESTS,
        help=f"requests that the server runs at once ({served.REQUESTS})",
    )
    parser.add_argument(
        "--answer",
        type=int,
        default=traffic.LONGEST_ANSWER,
        help=f"tokens of the longest answer ({traffic.LONGEST_ANSWER})",
    )
    parser.add_argument("--trace-memory", action="store_true", help="say what of it grows")
    parser.add_argument("--keep", type=Path, metavar="FILE", help="note rounds there, and go on")


def add_server_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the options that say what is served."""
    pairs = "; ".join(f"{name}: {one.pair}, {one.about}" for name, one in served.PAIRS.items())
    parser.add_argument("--pair", choices=[*served.PAIRS], default="dense", help=pairs)
    parser.add_argument("--seed", type=int, default=0, help="draws everything (0)")
    parser.add_argument("--mode", choices=[*served.MODES], default="eager", help="of passes")
    parser.add_argument("--ranks", type=int, default=1, help="of tensor parallelism (1)")
    parser.add_argument("--priorities", action="store_true", help="schedule by priority")
    parser.add_argument("--fork", action="store_true", help="fork the engine core: starts faster")
    parser.add_argument("--folder", type=Path, help="for the server's log (a temporary one)")


def add_choice_of_server(parser: argparse.ArgumentParser) -> None:
    """Describe the options that leave the draft or the plugin out."""
    parser.add_argument("--no-draft", action="store_true", help="serve the target alone")
    parser.add_argument("--stock", action="store_true", help="run vllm-ascend without the plugin")


def setting_of(asked: argparse.Namespace) -> served.Setting:
    """What the options say is served."""
    variables = dict(STOCK) if asked.stock else {}
    if asked.fork:
        variables["VLLM_WORKER_MULTIPROC_METHOD"] = "fork"
    return served.Setting(
        served.PAIRS[asked.pair],
        asked.mode,
        asked.runner,
        asked.ranks,
        not asked.no_draft,
        asked.priorities,
        variables=variables,
    )


def run(asked: argparse.Namespace) -> int:
    """Serve and check; returns the exit status."""
    with tempfile.TemporaryDirectory(prefix="reliability") as temporary:
        folder = asked.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        setting = replace(setting_of(asked), running=asked.running)
        if asked.adapters:
            setting = with_adapters(setting, asked.adapters, Path(temporary))
        if asked.trace_memory:
            setting = replace(setting, options=("--worker-extension-cls", WORKER))
        if asked.spoil:
            draft = spoiled(setting.draft_folder, asked.spoil, Path(temporary))
            setting = replace(setting, draft=draft)
        findings = under_load(setting, asked, folder)
    for line in [*levels.told(findings.grew), *findings.grown, *findings.problems]:
        print(f"  {line}", file=sys.stderr)
    if asked.json:
        print(json.dumps(asdict(findings), indent=1))
    print(summary(findings), file=sys.stderr)
    return 1 if findings.problems else 0


def with_adapters(setting: served.Setting, count: int, folder: Path) -> served.Setting:
    """The same with so many adapters, and models of as many tokens as adapters need."""
    pair = setting.served.pair
    target = widened(pair.target, folder / "target")
    draft = widened(pair.draft, folder / "draft") if setting.with_draft else None
    return replace(
        setting, target=target, draft=draft, adapters=adapters.make(target, folder, count)
    )


def summary(found: Findings) -> str:
    """One line."""
    counts = ", ".join(f"{count} {name}" for name, count in sorted(found.requests.items()))
    share = found.accepted / found.drafted if found.drafted else 0.0
    return (
        f"{counts}; {found.tokens} tokens, {found.checked} judged ({found.near_ties} near ties, "
        f"{found.draws.count} drawn at random: {found.draws.deviation:+.1f} deviations); "
        f"{found.preemptions} preemptions, {share:.2f} of drafts accepted; exit status "
        f"{found.ended[0]}, gone after {found.ended[1]:.1f} s; {found.seconds:.0f} s; "
        f"{len(found.problems)} problems"
    )


@contextlib.contextmanager
def server_files() -> Iterator[Path]:
    """A folder for a server's temporary files; its path is short, as those of sockets must be."""
    with tempfile.TemporaryDirectory(prefix="served") as folder:
        yield Path(folder)


def under_load(setting: served.Setting, asked: argparse.Namespace, folder: Path) -> Findings:
    """Start a server, send all requests in rounds, judge them, and end it."""
    began = time.monotonic()
    found, first = _kept(asked)
    merged = {name: adapter.merged for name, adapter in setting.adapters.items()}
    judge, growth = Judge(setting.reference, merged), Growth()
    log = folder / "server.log"
    with (
        server_files() as files,
        started(setting.arguments(), log, setting.environment(files)) as server,
    ):
        watched = Watched(server.process.pid, files)
        wait_until_healthy(server)
        _say(f"the server is healthy after {time.monotonic() - began:.0f} s")
        found.memory.append(megabytes(watched.look()))
        for start in range(first, asked.requests, asked.round):
            numbers = range(start, min(start + asked.round, asked.requests))
            try:
                _round(setting, asked, server, judge, found, numbers)
            except OSError as error:  # urllib's errors are
                found.problems.append(f"no answer of the server: {error}; see {server.log}")
                break
            found.memory.append(megabytes(watched.look()))
            if asked.trace_memory:
                growth.note(numbers.stop, server.call_workers)
            found.seconds += time.monotonic() - began
            found.times.append(found.seconds)
            began = time.monotonic()
            _say(f"{numbers.stop} of {asked.requests}: {summary(found)}")
            if asked.keep:
                _keep(asked, found, numbers.stop)
        found.grown = growth.told() if asked.trace_memory else []
        _check_figures(setting, asked, server, found)
        end(server, watched, found)
    found.seconds += time.monotonic() - began
    return found


def _round(
    setting: served.Setting,
    asked: argparse.Namespace,
    server: Server,
    judge: Judge,
    found: Findings,
    numbers: range,
) -> None:
    requests = _drawn(setting, asked, numbers)
    target = Target(server.address, setting.model, setting.priorities)
    before = server.metrics()
    with adapters.loaded(server, setting.adapters):
        answers = client.send_all(target, requests, asked.at_once)
    _note_answers(answers, judge, found)
    found.problems += idle_problems(server)
    after = server.metrics()

    def more(name: str) -> int:
        return int(after.get(name, 0.0) - before.get(name, 0.0))

    found.preemptions += more("vllm:num_preemptions_total")
    found.drafted += more("vllm:spec_decode_num_draft_tokens_total")
    found.accepted += more("vllm:spec_decode_num_accepted_tokens_total")


def _drawn(setting: served.Setting, asked: argparse.Namespace, numbers: range) -> list[Request]:
    """Requests of a round; those of its beginning preempt each other on any machine."""
    text, grammars = traffic.text_of(setting.reference), setting.served.grammars
    growing, others = numbers[: setting.running], numbers[setting.running :]
    names, longest = [*setting.adapters], served.LONGEST
    return [
        *(traffic.draw_growing(asked.seed, number, text) for number in growing),
        *(
            traffic.draw(asked.seed, number, text, longest, grammars, names, asked.answer, True)
            for number in others
        ),
    ]


def _note_answers(answers: list[Answer], judge: Judge, found: Findings) -> None:
    checked, ties, judge.draws = judge.checked, judge.near_ties, Draws()
    found.problems += problems_of(answers, judge)
    found.checked += judge.checked - checked
    found.near_ties += judge.near_ties - ties
    found.draws += judge.draws
    outcomes = Counter(found.requests)
    outcomes.update(answer.outcome for answer in answers)
    found.requests = dict(outcomes)
    # Of a hostile request no token is judged, and none counts.
    asked = [answer for answer in answers if not answer.request.hostile]
    found.tokens += sum(len(tokens) for answer in asked for tokens in answer.tokens)


def problems_of(answers: list[Answer], judge: Judge) -> list[str]:
    """Of requests that were neither answered nor aborted, and of all tokens that came."""
    found = []
    for answer in answers:
        if answer.outcome not in (ANSWERED, ABORTED, REFUSED):
            found.append(f"request {answer.request.number} {answer.outcome}: {answer.reason}")
        found += judge.problems(answer)
    return found


def idle_problems(server: Server, seconds: float = IDLE_SECONDS) -> list[str]:
    """Requests or blocks that a server without clients still has after a while."""
    names = ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc")
    began = time.monotonic()
    while True:
        figures = server.metrics()
        left = {name: figures[name] for name in names if figures[name]}
        if not left:
            return []
        if time.monotonic() - began > seconds:
            return [f"{name} is {value} without clients" for name, value in left.items()]
        time.sleep(0.5)


def _check_figures(
    setting: served.Setting, asked: argparse.Namespace, server: Server, found: Findings
) -> None:
    if not found.preemptions:
        found.problems.append("nothing was preempted: the cache is too large, or too little asked")
    if setting.with_draft and not asked.spoil and not found.accepted:
        found.problems.append("no draft token was accepted")
    found.problems += found.draws.problems()
    found.grew = levels.growth(found.times, found.memory)
    found.problems += levels.problems(found.grew)
    said = server.log.read_text(errors="replace").count(WORTHLESS)
    is_worthless = found.drafted > 0 and found.accepted < LEAST * found.drafted
    # So many hold a whole count of proposals: each has K tokens, but near the end of a context.
    is_known = found.drafted >= 2 * PROPOSALS * setting.served.k
    if said > 1 or (is_known and said != int(is_worthless)):
        found.problems.append(f"the log says {said} times that the draft is worthless")
    if server.process.poll() is not None:
        found.problems.append(f"the server ended by itself with {server.process.returncode}")


def end(server: Server, watched: Watched, found: Findings) -> None:
    """Ask the server to end, and note what is left of it."""
    watched.look()
    server.process.send_signal(signal.SIGTERM)
    seconds, left = watched.wait_until_gone(END_SECONDS)
    with contextlib.suppress(subprocess.TimeoutExpired):
        # Threads of a process that is gone may end later.
        server.process.wait(5)
    found.ended = (server.process.poll(), seconds)
    found.sockets = len(watched.sockets())
    if server.process.returncode != 0:
        found.problems.append(f"exit status {server.process.returncode} after SIGTERM")
    if left:
        found.problems.append(f"left after {seconds:.0f} s: {', '.join(left)}")
    if files := watched.left_behind():
        found.problems.append(f"left behind: {', '.join(files)}")


def _kept(asked: argparse.Namespace) -> tuple[Findings, int]:
    """What earlier rounds of the same run found, and the number of the next request."""
    if asked.keep is None or not asked.keep.exists():
        return Findings(), 0
    last = json.loads(asked.keep.read_text().splitlines()[-1])
    if last["run"] != _identity(asked):
        raise SystemExit(
            f"reliability: {asked.keep} holds rounds of {last['run']}, asked for was "
            f"{_identity(asked)}. Name another file, or remove this one."
        )
    fields = last["found"]
    fields["ended"] = tuple(fields["ended"])
    fields["draws"] = Draws(**fields["draws"])
    return Findings(**fields), int(last["next"])


def _keep(asked: argparse.Namespace, found: Findings, following: int) -> None:
    line = {"run": _identity(asked), "next": following, "found": asdict(found)}
    with asked.keep.open("a") as file:
        file.write(json.dumps(line) + "\n")


def _identity(asked: argparse.Namespace) -> dict[str, Any]:
    names = (
        "pair",
        "seed",
        "mode",
        "runner",
        "ranks",
        "no_draft",
        "priorities",
        "stock",
        "fork",
        "spoil",
        "adapters",
        "running",
        "answer",
    )
    return {name: getattr(asked, name) for name in names}


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)

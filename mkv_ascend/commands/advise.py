# SPDX-License-Identifier: Apache-2.0
"""``mkv-ascend advise``: does a draft pay, predicted of models built without weights."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from mkv_ascend.adapters.installed import rules
from mkv_ascend.advice.prediction import (
    Drafting,
    MeasuredError,
    Prediction,
    Serving,
    length_of,
    moved,
    predict,
    read_run,
)
from mkv_ascend.advice.work import CHIPS, Works, read_calibration, read_device
from mkv_ascend.commands import advise_candidates
from mkv_ascend.commands.advise_candidates import (
    EXIT_REFUSED,
    EXIT_UNREADABLE,
    AdviceError,
    Candidate,
)
from mkv_ascend.commands.command_words import LOOK_UP, positive
from mkv_ascend.commands.host_process import ProcessError
from mkv_ascend.plain_text import plain_json, shortened
from mkv_ascend.rules.facts import BLOCKS
from mkv_ascend.rules.verdict import of_waiting

HELP = "predict whether a draft pays for a target, and with how many tokens"

DESCRIPTION = """\
Judges the pair as mkv-ascend check does, and predicts, of the models that vLLM builds there without
weights, how long a decoding step takes with and without a draft: plain step, verify step, the
draft's passes, host time, speed-up, memory, requests at once, and the best number of draft tokens
for each batch size. Several drafts, or methods without one, are compared.

Every time is a prediction, from the least bytes and operations of each layer and from constants
that were fitted to published figures. docs/prediction.md compares it with figures that were not
used to fit. Nothing here was measured on your machine.
"""

EXAMPLES = """\
examples:
  mkv-ascend advise /models/Qwen3-32B --draft /models/Qwen3-0.6B --tp 4 --acceptance 0.7
  mkv-ascend advise /models/DeepSeek-V3 --method mtp --tp 16 --chip a3 --tokens 1 --length 1.8
  mkv-ascend advise /models/Qwen3-32B --method suffix --batch 1,26 --tokens 3 --length 1.9 --json
  mkv-ascend advise /models/Qwen3-32B --tp 4 --draft /models/Qwen3-0.6B \\
      --draft eagle3=/models/Qwen3-32B-eagle3 --acceptance 0.75,0.65

exit status: 0 it is predicted; 1 the pair will be refused; 2 it cannot be predicted
"""

MOST_TOKENS = 15
"""Of a proposal: FIA takes at most 16 query tokens of a request."""
SHARE_OF_MEMORY = 0.9
"""vLLM's ``--gpu-memory-utilization`` by default."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the options of ``mkv-ascend advise``."""
    parser.description = DESCRIPTION
    parser.epilog = EXAMPLES
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("target", type=Path, metavar="TARGET", help="directory of the target")
    advise_candidates.add_arguments(parser)
    parser.add_argument("--chip", choices=CHIPS, default="a2", help="(%(default)s)")
    parser.add_argument(
        *("--tp", "-tp", "--tensor-parallel-size"),
        type=positive,
        default=1,
        metavar="N",
        help="ranks (%(default)s)",
        dest="tp",
    )
    parser.add_argument(
        "--batch",
        type=lambda text: tuple(map(positive, text.split(","))),
        default=(1, 8, 64),
        metavar="N,...",
        help="requests (1,8,64)",
    )
    parser.add_argument(
        "--context", type=positive, default=4096, metavar="TOKENS", help="(%(default)s)"
    )
    parser.add_argument(
        *("--tokens", "-k", "--num-speculative-tokens"),
        dest="tokens",
        type=_tokens,
        metavar="K",
        help=f"draft tokens (1 to {MOST_TOKENS})",
    )
    parser.add_argument(
        "--graphs",
        choices=("full", "piecewise"),
        default="full",
        help="whether a step is one graph, or attention runs outside of graphs (%(default)s)",
    )
    parser.add_argument(
        "--async-scheduling",
        action=argparse.BooleanOptionalAction,
        help="as vllm serve (default: on without a draft; with one as vLLM decides by the method)",
    )
    parser.add_argument(
        "--calibrate",
        type=Path,
        action="append",
        metavar="FILE",
        help="a result of vllm bench serve --save-result of this target without a draft",
    )
    parser.add_argument("--json", action="store_true", help="answer as one JSON object")


def _tokens(text: str) -> int:
    if (tokens := positive(text)) > MOST_TOKENS:
        raise argparse.ArgumentTypeError(f"{text}; allowed: 1 to {MOST_TOKENS}")
    return tokens


def run(arguments: argparse.Namespace) -> int:
    """Print the prediction, or why there is none; returns the exit status."""
    try:
        answer = advise(arguments)
    except (AdviceError, MeasuredError, ProcessError) as error:
        print(f"mkv-ascend advise: {error}", file=sys.stderr)
        return getattr(error, "status", EXIT_UNREADABLE)
    if arguments.json:
        print(plain_json(answer))
    else:
        print(shortened("\n".join(lines(answer))))
    return 0


def advise(arguments: argparse.Namespace) -> dict[str, Any]:
    """The answer, as plain values: of one candidate, or of several with the best of each batch.

    Raises AdviceError where there is none.
    """
    asked = advise_candidates.candidates(arguments)
    if len(asked) == 1:
        return _of_candidate(arguments, asked[0])
    answers: list[dict[str, Any]] = []
    status = EXIT_REFUSED
    for candidate in asked:
        try:
            answers.append({"name": candidate.name, **_of_candidate(arguments, candidate)})
        except (AdviceError, ProcessError) as error:
            status = max(status, getattr(error, "status", EXIT_UNREADABLE))
            answers.append({"name": candidate.name, "refused": str(error)})
    told = [answer for answer in answers if "batches" in answer]
    if not told:
        words = "; ".join(f"{one['name']}: {one['refused']}" for one in answers)
        raise AdviceError(words, status)
    best = [_best_of(told, index) for index in range(len(arguments.batch))]
    return {"kind": "prediction", "candidates": answers, "best": best}


def _best_of(answers: list[dict[str, Any]], index: int) -> dict[str, Any]:
    """The fastest candidate of one batch size; no name where all of them lose."""
    answer = max(answers, key=lambda one: float(one["batches"][index]["shown"]["speed_up"]))
    batch = answer["batches"][index]
    shown = batch["shown"]
    gains = shown["speed_up"] > 1
    return {
        "requests": batch["requests"],
        "name": answer["name"] if gains else None,
        "tokens": shown["tokens"] if gains else 0,
        "speed_up": shown["speed_up"] if gains else 1.0,
    }


def _of_candidate(arguments: argparse.Namespace, candidate: Candidate) -> dict[str, Any]:
    # Both before vLLM is asked, which takes a while.
    acceptance = advise_candidates.acceptance_in(arguments, candidate)
    runs = [read_run(path) for path in arguments.calibrate or ()]
    judged = advise_candidates.judged(arguments, candidate)
    works = _works(judged)
    serving = Serving(
        works.target,
        read_device(arguments.chip),
        read_calibration(),
        arguments.context,
        arguments.graphs == "full",
        ahead=arguments.async_scheduling is not False,
    )
    if runs:
        serving = moved(serving, runs)
    # vLLM waits for what is looked up, and hands a draft_model the token that the target sampled
    # beside those it verified.
    method, models = candidate.method, {"target": None, "draft": None, **judged["models"]}
    ahead = judged["async_scheduling"] and method not in LOOK_UP
    beside = 2 if method == "draft_model" else 1
    drafting = Drafting(works.draft, method in BLOCKS, beside, ahead)
    batches = [
        _of_batch(serving, drafting, requests, acceptance, arguments.tokens)
        for requests in arguments.batch
    ]
    return {
        **{role: name and Path(name).resolve().name for role, name in models.items()},
        "method": method,
        "chip": arguments.chip,
        "ranks": arguments.tp,
        "context": arguments.context,
        "graphs": arguments.graphs,
        "async_scheduling": drafting.ahead,
        "async_scheduling_without": serving.ahead,
        "acceptance": round(acceptance, 4),
        "kind": "prediction",
        "error_band": serving.calibration.band,
        "calibration": serving.calibration.source,
        "batches": batches,
        "memory": _memory(serving, judged),
    }


def _works(judged: dict[str, Any]) -> Works:
    """What steps of both models read and compute. Raises AdviceError where it is not told."""
    if judged["works"] is None:
        raise AdviceError(
            f"how long a step takes is not told: {judged['untold']}. Possible: models whose caches "
            "tell what a step reads of them. Measure it instead (docs/advise.md)"
        )
    from pydantic import TypeAdapter  # Brought by vLLM, which was asked.

    return TypeAdapter(Works).validate_python(judged["works"])


def _of_batch(
    serving: Serving, drafting: Drafting, requests: int, acceptance: float, asked: int | None
) -> dict[str, Any]:
    """Each number of draft tokens at this batch size, the best of them, and what it comes to."""
    found = [
        predict(serving, drafting, requests, tokens, length_of(acceptance, tokens))
        for tokens in range(1, MOST_TOKENS + 1)
    ]
    best = max(found, key=lambda prediction: prediction.speed_up)
    shown = best if asked is None else found[asked - 1]
    return {
        "requests": requests,
        "best_tokens": best.tokens if best.speed_up > 1 else 0,
        "shown": _plain(shown),
        "verdict": _verdict(shown),
        "by_tokens": [_plain(prediction) for prediction in found],
    }


def _plain(found: Prediction) -> dict[str, Any]:
    low, high = found.bounds
    return {
        "tokens": found.tokens,
        "length": round(found.length, 3),
        "plain_ms": round(1e3 * found.plain, 3),
        "plain_host_ms": round(1e3 * found.plain_host, 3),
        "verify_ms": round(1e3 * found.verify, 3),
        "draft_ms": round(1e3 * found.draft, 3),
        "host_ms": round(1e3 * found.host, 3),
        "ms_per_token": round(1e3 * found.time_per_token, 3),
        "speed_up": round(found.speed_up, 3),
        "speed_up_from": round(low, 3),
        "speed_up_to": round(high, 3),
    }


def _verdict(found: Prediction) -> str:
    from mkv_ascend.layout.report import count

    percent = abs(found.speed_up - 1) * 100
    sure = found.bounds[0] > 1 or found.bounds[1] < 1
    doubt = "" if sure else ", within the error of the prediction"
    word = "gain" if found.speed_up > 1 else "lose"
    return (
        f"at batch {found.requests} this pair is predicted to {word} about {percent:.0f} % with "
        f"{count(found.tokens, 'draft token')}{doubt}"
    )


def _memory(serving: Serving, judged: dict[str, Any]) -> dict[str, Any]:
    """Weights, and requests that fit beside them; the reason where none does."""
    weights = judged["weight_bytes"]
    left = SHARE_OF_MEMORY * serving.device.memory_bytes - weights
    answer: dict[str, Any] = {"weight_bytes": weights, "cache_bytes": max(0, round(left))}
    if left <= 0:
        return {**answer, "unplanned": "the weights do not fit into the memory of one device"}
    requests = max(0.0, (left - judged["bytes_per_block"]) / judged["request_bytes"])
    return {
        **answer,
        "request_bytes": judged["request_bytes"],
        "requests_at_once": round(requests, 1),
    }


def lines(answer: dict[str, Any]) -> list[str]:
    """Of one candidate, or of several with the best of each batch size."""
    return _alone(answer) if "batches" in answer else _compared(answer)


def _compared(answer: dict[str, Any]) -> list[str]:
    """Each candidate as if alone, and then the best of each batch size."""
    told: list[str] = []
    for one in answer["candidates"]:
        refused = one.get("refused")
        told += [f"not predicted: {one['name']}: {refused}"] if refused else _alone(one)
    for best in answer["best"]:
        found = (
            f"{best['name']} with K = {best['tokens']}, {best['speed_up']:.2f} times as fast"
            if best["name"]
            else "no draft: each is predicted to lose"
        )
        told.append(f"best at batch {best['requests']}: {found}")
    return told


def _line_of_scheduling(answer: dict[str, Any]) -> list[str]:
    """That vLLM schedules steps with this draft one after the other, and what changes that."""
    method = answer["method"]
    if answer["async_scheduling"] or not answer["async_scheduling_without"]:
        return []
    note = list(of_waiting(rules(), method, waits=True))
    return [f"  {line}" for line in note or [f"vLLM does not schedule method {method} ahead"]]


def _alone(answer: dict[str, Any]) -> list[str]:
    who = answer["target"] + (f" + {answer['draft']}" if answer["draft"] else "")
    told = [
        f"predicted, not measured: {who}, method {answer['method']}, {answer['ranks']} x "
        f"{answer['chip']}, context {answer['context']}, acceptance {answer['acceptance']}",
        f"  {'batch':>5} {'K':>3} {'tokens':>7} {'plain ms':>9} {'verify':>7} {'draft':>7} "
        f"{'host':>7} {'ms/token':>9} {'speed-up':>9}  band         best K",
    ]
    for batch in answer["batches"]:
        shown = batch["shown"]
        told.append(
            f"  {batch['requests']:>5} {shown['tokens']:>3} {shown['length']:>7.2f} "
            f"{shown['plain_ms'] + shown['plain_host_ms']:>9.2f} {shown['verify_ms']:>7.2f} "
            f"{shown['draft_ms']:>7.2f} {shown['host_ms']:>7.2f} {shown['ms_per_token']:>9.2f} "
            f"{shown['speed_up']:>9.2f}  {shown['speed_up_from']:.2f} to "
            f"{shown['speed_up_to']:.2f} {batch['best_tokens']:>5}"
        )
    told += [f"  {batch['verdict']}" for batch in answer["batches"]]
    told += _line_of_scheduling(answer)
    memory = answer["memory"]
    text = f"  weights {memory['weight_bytes'] / 2**30:.1f} GiB on each device"
    if "unplanned" in memory:
        return [*told, f"{text}; requests at once not told: {memory['unplanned']}"]
    return [
        *told,
        f"{text}; {memory['requests_at_once']} requests of {answer['context']} tokens at once in "
        f"{memory['cache_bytes'] / 2**30:.1f} GiB of KV caches",
    ]

# SPDX-License-Identifier: Apache-2.0
"""``mkv-ascend advise``: does a draft pay, predicted of models built without weights."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

from mkv_ascend.advice.prediction import (
    Drafting,
    MeasuredError,
    Prediction,
    Serving,
    acceptance_of,
    length_of,
    moved,
    predict,
    read_run,
)
from mkv_ascend.advice.work import CHIPS, Works, read_calibration, read_device
from mkv_ascend.commands import advise_candidates, advise_text, host_process
from mkv_ascend.commands.advise_candidates import EXIT_UNREADABLE, AdviceError, Candidate
from mkv_ascend.commands.command_words import LOOK_UP, positive
from mkv_ascend.commands.host_process import ProcessError
from mkv_ascend.plain_text import plain_json, shortened
from mkv_ascend.rules.facts import BLOCKS
from mkv_ascend.rules.refusal import Refusal, text_of

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

EXIT_REFUSED = 1
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
        "--batch", type=_batches, default=(1, 8, 64), metavar="N,...", help="requests (1,8,64)"
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


def _batches(text: str) -> tuple[int, ...]:
    return tuple(positive(part) for part in text.split(","))


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
        print(shortened("\n".join(advise_text.lines(answer))))
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
    acceptance = _acceptance(arguments, candidate)
    runs = [read_run(path) for path in arguments.calibrate or ()]
    judged = _judged(arguments, candidate)
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
    drafting = _drafting(candidate.method, works, _is_ahead(judged, candidate))
    batches = [
        _of_batch(serving, drafting, requests, acceptance, arguments.tokens)
        for requests in arguments.batch
    ]
    return {
        **{role: _name(judged["models"].get(role)) for role in ("target", "draft")},
        "method": candidate.method,
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


def _name(folder: str | None) -> str | None:
    return None if folder is None else Path(folder).resolve().name


def _is_ahead(judged: dict[str, Any], candidate: Candidate) -> bool:
    """Whether steps with a proposal are scheduled ahead; vLLM waits for what is looked up."""
    return judged["async_scheduling"] and candidate.method not in LOOK_UP


def _works(judged: dict[str, Any]) -> Works:
    """What steps of both models read and compute. Raises AdviceError where it is not told."""
    if judged["works"] is None:
        raise AdviceError(
            f"how long a step takes is not told: {judged['untold']}. Possible: models whose caches "
            "tell what a step reads of them. Measure it instead (docs/advise.md)"
        )
    from pydantic import TypeAdapter  # Brought by vLLM, which was asked.

    return TypeAdapter(Works).validate_python(judged["works"])


def _drafting(method: str, works: Works, ahead: bool) -> Drafting:
    # vLLM hands a draft_model the token that the target sampled beside those it verified.
    return Drafting(works.draft, method in BLOCKS, 2 if method == "draft_model" else 1, ahead)


def _acceptance(arguments: argparse.Namespace, candidate: Candidate) -> float:
    if candidate.acceptance is not None:
        return candidate.acceptance
    if arguments.tokens is None:
        raise AdviceError("--length needs --tokens K, the draft tokens that it was seen with")
    assert candidate.length is not None
    try:
        return acceptance_of(candidate.length, arguments.tokens)
    except ValueError as error:
        raise AdviceError(f"--length {candidate.length}: {error}") from error


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
    from mkv_ascend.layout.report_text import count

    percent = abs(found.speed_up - 1) * 100
    sure = found.bounds[0] > 1 or found.bounds[1] < 1
    doubt = "" if sure else ", within the error of the prediction"
    word = "gain" if found.speed_up > 1 else "lose"
    return (
        f"at batch {found.requests} this pair is predicted to {word} about {percent:.0f} % with "
        f"{count(found.tokens, 'draft token')}{doubt}"
    )


def _judged(arguments: argparse.Namespace, candidate: Candidate) -> dict[str, Any]:
    """What ``mkv-ascend check`` says of the pair, whatever memory a device has.

    Raises AdviceError with its words where it is refused; ProcessError where vLLM is not asked.
    """
    words = [os.path.abspath(arguments.target), "--tensor-parallel-size", str(arguments.tp)]
    words += ["--max-model-len", str(arguments.context)]
    if arguments.async_scheduling is not None:
        words.append(f"--{'' if arguments.async_scheduling else 'no-'}async-scheduling")
    # Lookups need nothing of the models, and packages that a server has.
    if candidate.method in LOOK_UP:
        if arguments.async_scheduling:
            raise AdviceError(
                f"vLLM refuses --async-scheduling with method {candidate.method}: leave it out; "
                "steps without a draft are scheduled ahead by themselves"
            )
    else:
        speculation = {"method": candidate.method, "num_speculative_tokens": arguments.tokens or 1}
        if candidate.draft is not None:
            speculation["model"] = os.path.abspath(candidate.draft)
        words += ["--speculative-config", json.dumps(speculation)]
    device = {
        **host_process.THIS,
        "count_is_known": True,
        "memory_bytes": 1 << 50,
        "generation": arguments.chip.upper(),
        "source": f"judged for an Ascend {arguments.chip.upper()}",
    }
    question = {"words": words, "device": device, "plan": False, "works": True}
    answer: dict[str, Any] = host_process.ask(question, {}, "advise")
    if answer["answer"] == "refused":
        refusals = (Refusal(**refusal) for refusal in answer["refusals"])
        raise AdviceError(text_of(refusals), EXIT_REFUSED)
    if answer["answer"] != "served":
        raise AdviceError(answer["problem"])
    return answer


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

# SPDX-License-Identifier: Apache-2.0
"""What ``mkv-ascend bench`` runs: a server with one draft, and vLLM's client that asks it."""

from __future__ import annotations

import argparse
import itertools
import json
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mkv_ascend.child_process import module_command, safe_environment
from mkv_ascend.commands import demo_server
from mkv_ascend.commands.draft_options import DraftOptionError, ways_to_draft
from mkv_ascend.metrics import definitions as metrics

AUTO = "auto"
CLIENT_SECONDS = 4 * 3600
TIMES = {
    "ttft_ms": "mean_ttft_ms",
    "tpot_ms": "mean_tpot_ms",
    "p99_tpot_ms": "p99_tpot_ms",
    "tokens_per_second": "output_throughput",
}
"""Name in our answer -> in that of ``vllm bench serve``."""
COUNTS = {
    "proposals_of_steps": metrics.PROPOSALS.name,
    "draft_passes": metrics.PASSES.name,
    "metadata_builds": metrics.METADATA_BUILDS.name,
    "host_reads": metrics.HOST_READS.name,
}
"""Name in our answer -> metric."""


@dataclass(frozen=True)
class Run:
    """One server.

    Attributes:
        name: of its row.
        tokens: K; 0 without a draft.
        options: of ``vllm serve``, the target first.
    """

    name: str
    tokens: int
    options: tuple[str, ...]


def runs(arguments: argparse.Namespace) -> list[Run]:
    """The target alone with each of its backends, then each draft. Raises DraftOptionError."""
    ways = ways_to_draft(arguments.draft, arguments.method)
    _refuse_given_twice(arguments)
    of_target = list(dict.fromkeys(arguments.target_backend or [AUTO]))
    of_draft = list(dict.fromkeys(arguments.draft_backend or [AUTO]))
    found = [_run(arguments, None, {"target": backend}) for backend in of_target]
    for (method, draft), tokens, target, own in itertools.product(
        ways, dict.fromkeys(arguments.tokens), of_target, of_draft
    ):
        speculation: dict[str, Any] = {"method": method, "num_speculative_tokens": tokens}
        if draft is not None:
            speculation["model"] = str(draft)
        found.append(_run(arguments, speculation, {"target": target, "draft": own}))
    return found


def _refuse_given_twice(arguments: argparse.Namespace) -> None:
    """Raise DraftOptionError for options of ``vllm serve`` that this command makes itself."""
    ours = {"--speculative-config": "--draft, --method and --tokens"}
    if arguments.target_backend or arguments.draft_backend:
        ours["--additional-config"] = "--target-backend and --draft-backend"
    for word in arguments.serve:
        option = word.partition("=")[0]
        if option in ours:
            raise DraftOptionError(f"--serve has {option}, and so do {ours[option]}: leave out one")


def _run(
    arguments: argparse.Namespace,
    speculation: Mapping[str, Any] | None,
    backends: Mapping[str, str],
) -> Run:
    chosen = {role: name for role, name in backends.items() if name != AUTO}
    options = [str(arguments.target), *arguments.serve]
    names = ["no draft"]
    if speculation is not None:
        options += ["--speculative-config", json.dumps(speculation)]
        draft = Path(speculation["model"]).resolve().name if "model" in speculation else ""
        names = [f"{speculation['method']} {draft}".strip()]
        names.append(f"K = {speculation['num_speculative_tokens']}")
    if chosen:
        own = json.dumps({"mkv_ascend": {"attention": chosen}})
        options += ["--additional-config", own]
        names += [f"{role}: {name}" for role, name in chosen.items()]
    tokens = speculation["num_speculative_tokens"] if speculation else 0
    return Run(", ".join(names), tokens, tuple(options))


def client_command(asked: argparse.Namespace, address: str, result: Path) -> list[str]:
    """``vllm bench serve``: the same requests for each server; ``result``: its file."""
    words = [*module_command("vllm.entrypoints.cli.main"), "bench", "serve"]
    words += ["--base-url", address, "--model", str(asked.target), "--seed", "0"]
    words += ["--num-prompts", str(asked.requests), "--max-concurrency", str(asked.concurrency)]
    words += ["--temperature", "0", "--ignore-eos", "--disable-tqdm", "--save-result"]
    words += ["--result-dir", str(result.parent), "--result-filename", result.name]
    output = str(asked.output)
    if asked.prompts is None:
        words += ["--dataset-name", "random", "--random-input-len", str(asked.input)]
        return [*words, "--random-output-len", output]
    words += ["--dataset-name", "custom", "--dataset-path", str(asked.prompts)]
    return [*words, "--custom-output-len", output, "--disable-shuffle"]


def measure(
    run: Run, asked: argparse.Namespace, environment: Mapping[str, str] | None, log: Path
) -> dict[str, Any]:
    """One row of the answer; ``failed`` is in it where there is nothing to tell.

    Args:
        asked: the command's options.
        environment: of the server; None inherits this process's.
        log: of the server; what the client prints, and its result, are beside it.
    """
    row: dict[str, Any] = {"name": run.name, "tokens": run.tokens}
    try:
        with demo_server.started(list(run.options), log, environment) as server:
            demo_server.wait_until_healthy(server)
            file = log.with_suffix(".result.json").absolute()
            result = _result(client_command(asked, server.address, file), file)
            told = server.metrics()
    except (
        demo_server.ServerFailedError,
        ClientFailedError,
        subprocess.TimeoutExpired,
        OSError,
    ) as error:
        return {**row, "failed": _reason(error, log), "log": str(log)}
    return {**row, **row_of(result, told)}


class ClientFailedError(RuntimeError):
    """``vllm bench serve`` did not end well; the text holds the end of what it printed."""


def _result(command: list[str], file: Path) -> dict[str, Any]:
    log = file.with_suffix("").with_suffix(".client.log")
    # The server is on this machine: a proxy of the environment must not be asked for it.
    variables = safe_environment() | {"NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}
    with log.open("w") as output:
        status = subprocess.run(
            command,
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            timeout=CLIENT_SECONDS,
        ).returncode
    if status:
        end = "\n".join(log.read_text(errors="replace").splitlines()[-20:])
        raise ClientFailedError(f"vllm bench serve ended with status {status}\n{end}")
    result: dict[str, Any] = json.loads(file.read_text())
    if result["failed"] or not result["completed"]:
        raise ClientFailedError(f"{result['failed']} requests failed, see {log}")
    return result


def _reason(error: Exception, log: Path) -> str:
    """One line: vLLM's or our own sentence if the log has one, else what the error says."""
    refusals = [
        line.strip()
        for line in (log.read_text(errors="replace").splitlines() if log.exists() else [])
        if line.lstrip().startswith("mkv_ascend: ")
    ]
    return refusals[-1] if refusals else str(error)


def row_of(result: Mapping[str, Any], told: Mapping[str, float]) -> dict[str, Any]:
    """Figures of a run.

    Args:
        result: of ``vllm bench serve``; with drafts it has what was accepted while it asked.
        told: the server's metrics, which count its warm-up, too.
    """
    row: dict[str, Any] = {
        "completed": result["completed"],
        "output_tokens": result["total_output_tokens"],
        "times": {name: round(float(result[key]), 3) for name, key in TIMES.items()},
        "counts": {name: int(told[key]) for name, key in COUNTS.items() if key in told},
    }
    if "spec_decode_acceptance_length" in result:
        row |= {
            "tokens_per_step": round(float(result["spec_decode_acceptance_length"]), 4),
            "accepted_by_position": [
                round(float(share), 4)
                for share in result["spec_decode_per_position_acceptance_rates"]
            ],
        }
    return row

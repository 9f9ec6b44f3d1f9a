# SPDX-License-Identifier: Apache-2.0
"""What ``make demo`` runs: a target with a draft over HTTP, and the proof that no token changed."""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from examples.demo import client
from examples.demo.client import Completion
from examples.demo.server import Server, ServerFailedError, started, wait_until_healthy
from mkv_ascend.adapters.installed import installed_versions, version_problem
from mkv_ascend.commands import emulate
from mkv_ascend.commands.command_words import positive
from mkv_ascend.commands.host_process import RUNNER, ProcessError, runner_variables
from mkv_ascend.envs import EnvironmentVariableError
from mkv_ascend.host_versions import find_ascend

if TYPE_CHECKING:
    from rich.console import Console

DESCRIPTION = """\
Starts `vllm serve` in its default mode, in which Dynamo traces the target and steps are replayed
from ACL graphs, with a small DeepSeek-like target (MLA) and a smaller Gemma3-like draft (sliding
windows and full attention, so several KV groups), each with an attention backend of its own, and
asks it for stories. Prints which backend serves which layers in which KV group, the answers as they
stream, how many draft tokens the target accepted, and how many proposals were replayed. A second
server has the target alone; the tokens of both are compared.

Without an Ascend NPU the servers run on the emulated one. Exit status 0: every token is the same,
and proposals were replayed from graphs, unless --enforce-eager asks for none.
"""

EXIT_NOT_SHOWN = 1
"""A token is another one, or no proposal was replayed from a graph."""
EXIT_FAILED = 2
LOG_FOLDER = Path(".cache/demo")
LOG_WIDTH = 160

DTYPE = "bfloat16"
TARGET, DRAFT = "story_target", "story_draft"
"""Example models of the emulated NPU's distribution."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the options."""
    model_help = "a checkpoint directory, or an example model of the emulated NPU"
    parser.add_argument("--target", default=TARGET, help=f"{model_help} (%(default)s)")
    parser.add_argument("--draft", default=DRAFT, help=f"{model_help} (%(default)s)")
    parser.add_argument(
        "--target-backend",
        metavar="NAME",
        help="attention backend of the target's layers (default: the best for each layer)",
    )
    parser.add_argument(
        "--num-speculative-tokens",
        type=positive,
        default=3,
        metavar="K",
        help="tokens drafted per proposal (%(default)s)",
    )
    parser.add_argument(
        "--prompts", type=positive, default=4, metavar="N", help="questions to ask (%(default)s)"
    )
    parser.add_argument(
        "--max-tokens",
        type=positive,
        default=160,
        metavar="N",
        help="tokens to generate for each question at the most (%(default)s)",
    )
    parser.add_argument(
        "--enforce-eager",
        action="store_true",
        help="without ACL graphs and Dynamo, vLLM's default, which take longer to start",
    )
    parser.add_argument(
        "--runner",
        choices=("v1", "v2"),
        help="vLLM's model runner; v2 with vllm-ascend 0.30.0rc2 (default: the host's own)",
    )
    parser.add_argument(
        "--dtype",
        default=DTYPE,
        help="dtype of both models (%(default)s, which vLLM takes by itself)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Run the demo; returns 0 only if every token is the same with and without the draft."""
    # It brings the example models as well.
    if not emulate.is_installed():
        print(f"demo: {emulate.HOW_TO_INSTALL}", file=sys.stderr)
        return EXIT_FAILED
    from openai import OpenAIError
    from rich.console import Console

    # A pipe has no width of its own; rich would fold the table to 80 characters.
    width = None if sys.stdout.isatty() else LOG_WIDTH
    console = Console(highlight=False, soft_wrap=True, width=width)
    # Ended like Ctrl-C, so that the server, which has a session of its own, is ended as well.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        return _run(arguments, console, not find_ascend())
    except (ServerFailedError, DemoError, ProcessError, EnvironmentVariableError) as error:
        return _failed(console, str(error))
    except (OpenAIError, OSError) as error:
        # OSError: urllib's errors are, when a server ends between two requests.
        return _failed(console, f"{type(error).__name__}: {error}; the logs are in {LOG_FOLDER}")
    except KeyboardInterrupt:
        console.print("stopped")
        return EXIT_FAILED


def _failed(console: Console, reason: str) -> int:
    # On a line of its own, also in the middle of a completion.
    console.print("\n[bold red]demo failed:[/]", end=" ")
    # The end of a log may hold what looks like markup.
    console.print(reason, markup=False)
    return EXIT_FAILED


class DemoError(RuntimeError):
    """The demo cannot run here; the text says what to do."""


def _run(arguments: argparse.Namespace, console: Console, emulated: bool) -> int:
    from emulated_npu.example_models.stories import questions

    environment = _environment(emulated, arguments.dtype, runner_variables(arguments.runner))
    console.rule("[bold]mkv_ascend demo" + (", on the emulated NPU" if emulated else ""))
    console.print(_host(environment))
    target, draft = _model(arguments.target), _model(arguments.draft)
    texts = questions(arguments.prompts)

    speculation = {
        "method": "draft_model",
        "model": str(draft),
        "num_speculative_tokens": arguments.num_speculative_tokens,
    }
    alone = _options(arguments, target)
    drafting = [*alone, "--speculative-config", json.dumps(speculation)]
    with contextlib.ExitStack() as servers:

        def start(title: str, options: list[str]) -> Server:
            log = LOG_FOLDER / f"{title.replace(' ', '_')}.log"
            return servers.enter_context(started(options, log, environment))

        server = start("target with draft", drafting)
        if emulated:
            # There is memory for both, and so the second is ready when it is needed.
            second = start("target alone", alone)
        _wait(server, console)
        console.print(client.backend_table(server.call_workers("attention_layers")[0]))
        with_draft = _complete(server, target, texts, arguments.max_tokens, console)
        console.print(client.acceptance_table(server.metrics()))
        replays = server.call_workers("draft_replays")[0]
        console.print(client.replays_text(replays, server.metrics()))
        if not emulated:
            servers.close()
            second = start("target alone", alone)
        _wait(second, console)
        without = _complete(second, target, texts, arguments.max_tokens, None)
    status = _verdict(with_draft, without, console)
    return status if arguments.enforce_eager else status or _replayed(replays, console)


def _host(environment: Mapping[str, str]) -> str:
    """What is shown: both versions, and the model runner, which the variable alone chooses.

    Raises DemoError where either is missing.
    """
    found = installed_versions()
    if (problem := version_problem(found)) is not None:
        raise DemoError(problem)
    runner = "V1" if environment.get(RUNNER, "").strip() in ("", "0") else "V2"
    return f"vllm-ascend {found['vllm-ascend']} with vLLM {found['vllm']}, model runner {runner}"


def _options(arguments: argparse.Namespace, target: Path) -> list[str]:
    """The command line of `vllm serve` for the target alone."""
    options = [str(target), "--dtype", arguments.dtype, "--max-model-len", "512"]
    # One question is asked after the other: graphs for few requests do, and are captured sooner.
    options += ["--max-num-seqs", "4", "--gpu-memory-utilization", "0.5"]
    if arguments.target_backend is not None:
        choice = {"mkv_ascend": {"attention": {"target": arguments.target_backend}}}
        options += ["--additional-config", json.dumps(choice)]
    return [*options, "--enforce-eager"] if arguments.enforce_eager else options


def _environment(emulated: bool, dtype: str, runner: Mapping[str, str]) -> Mapping[str, str]:
    """Variables of the servers' processes; ``runner``: what chooses a model runner."""
    if not emulated:
        return {**os.environ, **runner}
    from emulated_npu import variables

    environment = {
        # Model runner V2 runs kernels of Triton.
        variables.TRITON.name: runner.get(RUNNER, "0"),
        variables.STRICT.name: "1",
        variables.FLOAT32_COMPUTE.name: str(int(dtype == "float32")),
        # Lets flash_attention_3 be chosen.
        variables.FA3.name: "1",
        **os.environ,
        **runner,
    }
    try:
        return emulate.environment_for((sys.executable,), environment)
    except emulate.EmulatorError as error:
        raise DemoError(str(error)) from error


def _model(name: str) -> Path:
    """A checkpoint directory as given, or the example model of that name."""
    from emulated_npu import example_models

    if Path(name, "config.json").is_file():
        return Path(name)
    if name in example_models.NAMES:
        return example_models.example_model(name)
    raise DemoError(
        f"{name!r} is neither a checkpoint directory nor an example model "
        f"({', '.join(example_models.NAMES)})"
    )


def _wait(server: Server, console: Console) -> None:
    """Wait until the server is healthy, with the seconds on the console."""
    title = f"vllm serve, {server.log.stem.replace('_', ' ')}"
    start = time.monotonic()
    with console.status(f"starting {title} (log: {server.log})") as status:
        wait_until_healthy(
            server,
            lambda seconds: status.update(f"starting {title}: {seconds:.0f} s (log: {server.log})"),
        )
    seconds = time.monotonic() - start
    console.print(f"{title}: healthy after {seconds:.0f} s (log: {server.log})")


def _complete(
    server: Server, model: Path, texts: list[str], max_tokens: int, console: Console | None
) -> list[Completion]:
    completions = []
    for number, text in enumerate(texts, start=1):
        if console is not None:
            console.print(f"[bold]question {number}[/] {text}", highlight=False)
        completions.append(
            client.stream_answer(server.openai_address, str(model), text, max_tokens, console)
        )
        if console is not None:
            console.print()
    return completions


def _verdict(with_draft: list[Completion], alone: list[Completion], console: Console) -> int:
    different = 0
    for number, (one, other) in enumerate(zip(with_draft, alone, strict=True), start=1):
        pairs = enumerate(itertools.zip_longest(one.tokens, other.tokens))
        place = next((index for index, pair in pairs if len(set(pair)) > 1), None)
        if place is not None:
            different += 1
            console.print(f"[red]question {number}: different from token {place} on[/]")
    total = sum(len(completion.tokens) for completion in alone)
    if different or not total:
        console.print(f"[bold red]{different} of {len(alone)} completions differ[/]")
        return EXIT_NOT_SHOWN
    console.print(
        f"[bold green]every token is the same[/]: {total} tokens in {len(alone)} completions, "
        "with the draft and without"
    )
    return 0


def _replayed(replays: Mapping[str, Any], console: Console) -> int:
    """The exit status of graph mode, by a worker's answer to ``draft_replays``."""
    if replays["replays"]:
        return 0
    console.print(
        "[bold red]no proposal was replayed from a graph[/]: the server's log says after "
        f"'The draft runs eagerly' why (in {LOG_FOLDER}); --enforce-eager runs the demo without "
        "graphs"
    )
    return EXIT_NOT_SHOWN


def main() -> int:
    """Run the demo as the command line says."""
    parser = argparse.ArgumentParser(
        prog="python -m examples.demo",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_arguments(parser)
    return run(parser.parse_args())


if __name__ == "__main__":
    sys.exit(main())

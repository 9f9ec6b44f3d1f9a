# SPDX-License-Identifier: Apache-2.0
"""From the words of a command to the configuration that vLLM makes of it, by vLLM's own code."""

from __future__ import annotations

import contextlib
import difflib
import functools
import importlib.util
import io
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from mkv_ascend.child_process import in_a_copy
from mkv_ascend.rules.refusal import Refusal, RefusedError

if TYPE_CHECKING:
    from vllm.config import VllmConfig

MOST_SHOWN = 60
"""Characters of a name that a message repeats."""


class CommandError(ValueError):
    """A command that vLLM's parser does not read, with its words."""


def read(words: Sequence[str]) -> Namespace:
    """The arguments of ``vllm serve``; ``words``: those behind it.

    Raises:
        CommandError: with vLLM's words, and the nearest option for an unknown one.
    """
    from vllm.entrypoints.cli.serve import ServeSubcommand
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    parser = FlexibleArgumentParser(prog="vllm")
    serve = ServeSubcommand().subparser_init(parser.add_subparsers(dest="subparser"))
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
            arguments = parser.parse_args(["serve", *words])
    except SystemExit:
        _, is_problem, problem = said.getvalue().rpartition(" error: ")
        if not is_problem:
            raise CommandError("it asks vLLM for help, and starts nothing") from None
        raise CommandError(
            f"{problem.strip()}{_nearest(words, serve._option_string_actions)}"
        ) from None
    except Exception as error:  # Whatever a reader of vLLM's options raises.
        words_of = str(error) or type(error).__name__
        raise CommandError(words_of) from None
    if arguments.model_tag is None and "--model" not in " ".join(words):
        named = any(word.startswith("--config") for word in words)
        if not named:
            raise CommandError("no model is given: write vllm serve MODEL")
    return arguments


def _nearest(words: Sequence[str], known: Any) -> str:
    """What an option may have been meant for; empty where all are known."""
    for word in words:
        name = word.partition("=")[0].partition(".")[0].replace("_", "-")[:MOST_SHOWN]
        if name.startswith("--") and name not in known:
            near = difflib.get_close_matches(name, list(known), n=1)
            if near:
                return f"; did you mean {near[0]} for {name}?"
    return ""


def look_at_classes_in_copies() -> None:
    """Let vLLM look at classes of models that it has not seen yet in copies of this process.

    Its own processes for that import everything once more: 8 s for each model.
    """
    from vllm.model_executor.models import registry

    of_vllm: Any = registry
    of_vllm._run_in_subprocess = in_a_copy


def configuration_of(question: Mapping[str, Any]) -> Callable[[], VllmConfig]:
    """What makes the configuration of a question; see ``answer.judge``. Raises CommandError."""
    if "engine" in question:
        return functools.partial(_of_engine, question["engine"])
    return functools.partial(configure, read(question["words"]))


def _of_engine(fields: Mapping[str, Any]) -> VllmConfig:
    from vllm import AsyncEngineArgs

    return AsyncEngineArgs(**fields).create_engine_config()


def configure(arguments: Namespace) -> VllmConfig:
    """The configuration that ``vllm serve`` makes, all that it looks at before.

    Raises: whatever vLLM, vllm-ascend or our platform do; RefusedError for adapters that would not
    be loaded.
    """
    if arguments.lora_modules and not arguments.enable_lora:
        asked = "--lora-modules is given without --enable-lora: the adapters would not be loaded"
        raise RefusedError([Refusal("lora", asked, "both, or neither", "add --enable-lora")])
    from vllm import AsyncEngineArgs
    from vllm.usage.usage_lib import UsageContext

    look_at(arguments)
    for check in _checks_of_servers():
        check(arguments)
    engine = AsyncEngineArgs.from_cli_args(arguments)
    headless = bool(getattr(arguments, "headless", False))
    return engine.create_engine_config(
        usage_context=UsageContext.OPENAI_API_SERVER, headless=headless
    )


def look_at(arguments: Namespace) -> None:
    """What ``vllm serve`` looks at, and writes into its arguments, until it starts something."""
    from vllm.entrypoints.cli.serve import ServeSubcommand

    serve: Any = sys.modules[ServeSubcommand.__module__]
    for name in starters():
        setattr(serve, name, lambda *_, **__: None)
    serve.uvloop = SimpleNamespace(run=lambda server: server.close())
    command = ServeSubcommand()
    command.validate(arguments)
    command.cmd(arguments)


def starters() -> tuple[str, ...]:
    """Functions of vLLM's serve that start processes."""
    return "run_headless", "run_multi_api_server", "run_dp_supervisor"


def _checks_of_servers() -> Iterator[Any]:
    """What an API server looks at before it starts an engine; vLLM 0.30.0 has it elsewhere."""
    for name in ("vllm.entrypoints.openai.api_server", "vllm.entrypoints.launchers.launcher"):
        if importlib.util.find_spec(name.rpartition(".")[0]) is not None:
            check = getattr(importlib.import_module(name), "validate_api_server_args", None)
            if check is not None:
                yield check
                return

# SPDX-License-Identifier: Apache-2.0
"""Judges commands one after another, each in a copy of a process that imported vLLM once.

``python -m tests.support.judged_commands`` reads lines of JSON, questions of
``mkv_ascend/adapters/common/judge/answer.py``, and prints a line of JSON for each answer. With
``"raw": true`` in a question it says what vLLM and vllm-ascend say of it themselves.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from typing import Any


def raw(words: list[str]) -> dict[str, Any]:
    """Whether ``create_engine_config`` makes a configuration where no rule of ours is asked."""
    from mkv_ascend.adapters.common.judge import command, early_check

    vars(early_check)["refusals"] = lambda facts: ()
    try:
        command.configuration_of({"words": words})()
    except command.CommandError:
        return {"answer": "unreadable"}
    except BaseException as error:  # Whatever they raise is what they refuse.
        return {"answer": "refused", "words": f"{type(error).__name__}: {error}"}
    return {"answer": "served"}


def answer(question: dict[str, Any]) -> dict[str, Any]:
    from mkv_ascend.adapters.installed import adapter

    if question.pop("raw", False):
        return raw(question["words"])
    host: Any = importlib.import_module(f"{adapter().PACKAGE}.judge.command")
    found: dict[str, Any] = host.judged(question)
    return found


def main() -> None:
    import vllm_ascend.ops  # noqa: F401  First of vllm_ascend, or its imports go in a circle.
    from vllm import AsyncEngineArgs  # noqa: F401
    from vllm.entrypoints.cli.serve import ServeSubcommand  # noqa: F401

    for line in sys.stdin:
        question = json.loads(line)
        reader, writer = os.pipe()
        if os.fork() == 0:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            with os.fdopen(writer, "w") as pipe:
                pipe.write(json.dumps(answer(question)))
            os._exit(0)
        os.close(writer)
        with os.fdopen(reader) as pipe:
            text = pipe.read()
        os.wait()
        os.write(1, f"\nanswer: {text or '{}'}\n".encode())


if __name__ == "__main__":
    main()

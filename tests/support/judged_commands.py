# SPDX-License-Identifier: Apache-2.0
"""Answers one question of ``mkv_ascend/adapters/common/judge/answer.py``, or the host's own answer.

With ``"raw": true`` in the question it says what vLLM and vllm-ascend say of it themselves.
"""

from __future__ import annotations

import importlib
from typing import Any

from mkv_ascend.adapters import questions


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
    host: Any = importlib.import_module(f"{adapter().PACKAGE}.judge")
    found: dict[str, Any] = host.judged(question)
    return found


if __name__ == "__main__":
    questions.answer(answer)

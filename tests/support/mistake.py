# SPDX-License-Identifier: Apache-2.0
"""One mistake of a user, and short ways to write its command."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Mistake:
    """``words``: behind ``vllm serve``. ``codes``: of the refusals, none where it is unreadable."""

    name: str
    words: tuple[str, ...]
    codes: tuple[str, ...]
    says: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    """Of ``mkv-ascend check`` itself."""

    @property
    def status(self) -> int:
        """Exit status of ``mkv-ascend check``."""
        return 1 if self.codes else 2


def spec(draft: str | None, tokens: Any = 3, **more: Any) -> tuple[str, str]:
    """``--speculative-config`` with a draft's folder."""
    values = {"num_speculative_tokens": tokens, **more}
    if draft is not None:
        values["model"] = draft
    # The braces are JSON's, except those around names of folders.
    return "--speculative-config", json.dumps(values)


def additional(**options: Any) -> tuple[str, str]:
    """``--additional-config``."""
    return "--additional-config", json.dumps(options)


def compilation(**options: Any) -> tuple[str, str]:
    """``--compilation-config``."""
    return "--compilation-config", json.dumps(options)


def mkv(**options: Any) -> tuple[str, str]:
    """``--additional-config`` with options of ours."""
    return additional(mkv_ascend=options)


SPLIT = ("--additional-config", '{"finegrained_tp_config": {"lmhead_tensor_parallel_size": 2}}')
"""Ranks split the vocabulary of sampling."""
OWN_PROCESS = ("--distributed-executor-backend", "mp")
"""A worker beside the engine core's process, which DeepSeek-V4 needs on vllm-ascend 0.30.0rc2."""
LLAMA, DRAFT = "{Llama-3.1-8B}", "{llama-draft}"
LAYERS = "attention.layers"


def one(name: str, code: str, *words: str, says: str | tuple[str, ...] = ()) -> Mistake:
    return Mistake(name, words, (code,), (says,) if isinstance(says, str) else says)

# SPDX-License-Identifier: Apache-2.0
"""What ``--draft`` and ``--speculative-config`` ask for together."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mkv_ascend.checks.model_config import ExplainError

__all__ = ["DRAFT_TOKENS", "Speculation", "read_speculation"]

DRAFT_TOKENS = 3


@dataclass(frozen=True)
class Speculation:
    """``tokens``: drafted per proposal. ``model``: directory of the draft, None for the target's
    own. ``options``: the speculative configuration as it was given.
    """

    method: str
    tokens: int
    model: Path | None
    options: Mapping[str, Any]

    def for_vllm(self) -> dict[str, Any]:
        """As vLLM takes it."""
        values = {**self.options, "method": self.method, "num_speculative_tokens": self.tokens}
        if self.model is not None:
            values["model"] = str(self.model)
        return values


def read_speculation(arguments: argparse.Namespace) -> Speculation | None:
    """The speculation asked for; None for none."""
    options = arguments.speculative_config
    if options is None:
        if arguments.draft is None:
            return None
        return Speculation("draft_model", DRAFT_TOKENS, arguments.draft, {})
    tokens = options.get("num_speculative_tokens")
    if not isinstance(tokens, int) or tokens < 1:
        raise ExplainError(
            f"num_speculative_tokens of --speculative-config is {tokens!r}; write a whole number "
            "from 1 on"
        )
    folder = _draft_folder(arguments.draft, options.get("model"))
    return Speculation(str(options.get("method", "draft_model")), tokens, folder, options)


def _draft_folder(draft: Path | None, model: object) -> Path | None:
    if model is None:
        return draft
    if draft is not None and Path(str(model)) != draft:
        raise ExplainError(
            f"--draft is {draft} and model of --speculative-config is {model}; give one of them"
        )
    return Path(str(model))

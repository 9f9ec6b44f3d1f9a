# SPDX-License-Identifier: Apache-2.0
"""Commands that are judged (``common/judge``), on this host."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from mkv_ascend.adapters.common.judge.answer import judge
from mkv_ascend.adapters.questions import answer
from mkv_ascend.adapters.vllm_ascend_0_23.judge.vllm_groups import group_specs

__all__ = ["group_specs", "judged", "prepare_grouping"]


def prepare_grouping(config: Any, specs: Mapping[str, Any]) -> None:
    """Nothing: vLLM 0.23.0 knows one arrangement of caches."""


def judged(question: Mapping[str, Any]) -> dict[str, Any]:
    """The answer to ``mkv_ascend.commands.check``."""
    return judge(question, sys.modules[__name__])


if __name__ == "__main__":
    answer(judged)

# SPDX-License-Identifier: Apache-2.0
"""Every rule, in order: judged by ``mkv-ascend check``, ``vllm serve`` and ``vllm.LLM`` alike."""

from __future__ import annotations

from mkv_ascend.rules import (
    backends,
    draft,
    draft_options,
    experts,
    families,
    graphs,
    kv_cache,
    parallelism,
    quantization,
    runner_v2,
)
from mkv_ascend.rules.facts import Facts
from mkv_ascend.rules.refusal import Check, Refusal

CHECKS: tuple[Check, ...] = (
    *quantization.CHECKS,
    *families.CHECKS,
    *kv_cache.CHECKS,
    *parallelism.CHECKS,
    *draft.CHECKS,
    *draft_options.CHECKS,
    *runner_v2.CHECKS,
    *experts.CHECKS,
    *backends.CHECKS,
    *graphs.CHECKS,
)


def refusals(facts: Facts) -> tuple[Refusal, ...]:
    """What every rule says of these facts, each thing once."""
    return tuple(dict.fromkeys(refusal for check in CHECKS for refusal in check(facts)))

# SPDX-License-Identifier: Apache-2.0
"""Options that vLLM has for targets with experts alone."""

from __future__ import annotations

from collections.abc import Iterator

from mkv_ascend.checks.facts import ServeFacts
from mkv_ascend.checks.refusal import Refusal

__all__ = ["CHECKS"]


def shared_out(facts: ServeFacts) -> Iterator[Refusal]:
    """Experts shared out among ranks, of a target that has none."""
    if facts.engine.get("enable_expert_parallel") and facts.target.is_dense:
        yield Refusal(
            "experts",
            f"--enable-expert-parallel is given, and {facts.target.name} has no experts",
            "targets with experts",
            "leave --enable-expert-parallel out",
        )


def balanced_outside(facts: ServeFacts) -> Iterator[Refusal]:
    """Copies behind a balancer of one's own, which vLLM takes of targets with experts alone."""
    outside = facts.engine.get("data_parallel_external_lb")
    ranked = facts.engine.get("data_parallel_rank") is not None
    if (
        facts.whole("data_parallel_size", 1) < 2
        or not (outside or ranked)
        or not facts.target.is_dense
    ):
        return
    option = "--data-parallel-rank" if ranked else "--data-parallel-external-lb"
    yield Refusal(
        "experts",
        f"{option} is given, and {facts.target.name} has no experts: its copies have nothing to do "
        "with each other",
        "targets with experts; servers of their own, without options of data parallelism",
        f"leave --data-parallel-size and {option} out",
    )


CHECKS = (shared_out, balanced_outside)

# SPDX-License-Identifier: Apache-2.0
"""Every rule, in order, and notes: what ``mkv-ascend check`` and ``vllm serve`` say of facts."""

from __future__ import annotations

from collections.abc import Iterator

from mkv_ascend.rules import (
    backends,
    draft,
    experts,
    families,
    graphs,
    kv_cache,
    options,
    parallelism,
    quantization,
    runner_v2,
)
from mkv_ascend.rules.draft import why_hits_are_not_read
from mkv_ascend.rules.facts import Facts, HostRules
from mkv_ascend.rules.refusal import Check, Refusal

CHECKS: tuple[Check, ...] = (
    *quantization.CHECKS,
    *families.CHECKS,
    *kv_cache.CHECKS,
    *parallelism.CHECKS,
    *draft.CHECKS,
    *options.CHECKS,
    *runner_v2.CHECKS,
    *experts.CHECKS,
    *backends.CHECKS,
    *graphs.CHECKS,
)


def refusals(facts: Facts) -> tuple[Refusal, ...]:
    """What every rule says of these facts, each thing once."""
    return tuple(dict.fromkeys(refusal for check in CHECKS for refusal in check(facts)))


def notes(facts: Facts, length: int) -> Iterator[str]:
    """Sentences for the answer; ``length``: tokens of the longest request that there will be."""
    if facts.graph_mode != "NONE":
        yield (
            "the memory of graphs is not counted: vllm-ascend captures them when the KV caches "
            "have theirs, in what they leave of a device, and logs what they take"
        )
    if length < facts.max_model_len:
        yield (
            f"--max-model-len is left to memory, which holds {length} of {facts.max_model_len} "
            "tokens at most"
        )
    yield from of_waiting(
        facts.host,
        facts.method,
        waits=not facts.async_scheduling,
        stages=facts.pipeline_parallel,
        executor=facts.executor,
    )
    draft = facts.draft
    if draft is None or draft.recurrent is None:
        return
    if facts.method == "draft_model" and facts.prefix_caching:
        reason = why_hits_are_not_read(facts, draft)
        if reason is None:
            yield "the draft has recurrent layers: it reads the tokens of each prefix hit itself"
        else:
            yield f"prefix caching will be off: the draft has recurrent layers, and {reason}"


def of_waiting(
    host: HostRules,
    method: str | None,
    *,
    waits: bool,
    stages: int = 1,
    executor: str | None = None,
    padded: bool = True,
) -> Iterator[str]:
    """That ``--async-scheduling`` would let steps be scheduled ahead that are not by default.

    ``stages``: of a pipeline, over which drafts are scheduled one after the other. ``executor``:
    ``--distributed-executor-backend``; not all take it. ``padded``: without
    ``disable_padded_drafter_batch``.
    """
    takes_it = stages == 1 and executor in (None, "mp", "uni") and padded
    if waits and takes_it and method in host.in_turn_by_default:
        yield (
            f"vLLM {host.vllm} schedules steps of method {method} one after the other by default; "
            "--async-scheduling schedules each while the one before it runs"
        )

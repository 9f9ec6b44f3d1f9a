# SPDX-License-Identifier: Apache-2.0
"""What the proposals of a pair cost, by exact count.

A proposal is ``_propose`` without the draft's own work: its forward, logits, sampling and feeding
back. In the target's pass only the making of slots and metadata is counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from tests.support import programs
from tests.support.pairs import scenario, text_prompts
from tests.support.probe import generated, started, worker_of

MAX_LAUNCHES = 6
"""Launches of a proposal beside the draft's own work, at the most."""
REPLAY, UPDATE = "NPUGraph.replay", "graph_task_update"
OWN_WORK = ("forward", "sample", "feed_back")


def probe(
    target: str,
    draft: str | None,
    *,
    max_tokens: int = 10,
    variables: Mapping[str, str] | None = None,
    **fields: Any,
) -> Any:
    """Run a pair of tiny models and count.

    Args:
        max_tokens: tokens to generate for each of three prompts.
        variables: of the engine's environment.
        fields: further fields of its scenario.
    """
    case = scenario(target, draft, record_drafts=False, **fields)
    request = {
        "engine": {**case.engine_arguments(), "async_scheduling": False},
        "prompts": text_prompts(case.model, 3),
        "max_tokens": max_tokens,
    }
    return programs.answer_of(counted, request, variables)


class Meter:
    """Adds up what the functions it wraps cost, each outermost call once."""

    def __init__(self) -> None:
        self.calls: list[Any] = []
        self._inside = False

    def wrap(self, owner: Any, name: str) -> None:
        """Count what ``owner``'s method of this name costs."""
        function = getattr(owner, name)

        def measured(*args: Any, **kwargs: Any) -> Any:
            if self._inside:
                return function(*args, **kwargs)
            self._inside = True
            before = counts()
            try:
                return function(*args, **kwargs)
            finally:
                self._inside = False
                self.calls.append(counts() - before)

        setattr(owner, name, measured)

    def take(self) -> list[Any]:
        """What was counted since it was asked for last."""
        taken, self.calls = self.calls, []
        return taken


def counts() -> Any:
    """All of this process so far."""
    from emulated_npu import counters

    return counters.snapshot()


def launches_of(snapshots: Sequence[Any]) -> Counter[str]:
    """By operator."""
    total: Counter[str] = Counter()
    for snapshot in snapshots:
        total.update(snapshot.launches)
    return total


def measure_proposals(drafter: Any) -> list[dict[str, Any]]:
    """Wrap the drafter's methods; the list fills with one row per proposal."""
    own, rows, assembly = Meter(), [], drafter.assembly
    for name in OWN_WORK:
        own.wrap(assembly.draft, name)
    # Model runner V2 has a method without the underscore.
    name = "_propose" if hasattr(drafter, "_propose") else "propose"
    propose = getattr(drafter, name)

    def measured(*args: Any, **kwargs: Any) -> Any:
        own.take()
        builds, before = assembly.proposal.needs.builds, counts()
        drafted = propose(*args, **kwargs)
        whole = counts() - before
        inner = own.take()
        rows.append(
            {
                "launches": dict(launches_of([whole]) - launches_of(inner)),
                "host_reads": whole.total_host_reads - sum(c.total_host_reads for c in inner),
                "waited_for": sum(times for times, _ in whole.asynchronous_reads.values()),
                "builds": assembly.proposal.needs.builds - builds,
                "rows": list(drafted.shape),
            }
        )
        return drafted

    setattr(drafter, name, measured)
    return rows


def measure_target(runner: Any) -> Meter:
    """Wrap what makes slots and metadata in the target's pass."""
    meter = Meter()
    if hasattr(runner, "model_state"):  # model runner V2
        meter.wrap(runner.model_state, "prepare_attn")
        meter.wrap(runner.block_tables, "compute_slot_mappings")
    else:
        meter.wrap(runner, "_build_attention_metadata")
        meter.wrap(runner.input_batch.block_table, "compute_slot_mapping")
    return meter


def count_builds() -> list[str]:
    """Note each run of vllm-ascend's builder; before an engine takes hold of the method."""
    import vllm_ascend.ops  # noqa: F401  before the rest of it: its modules import in a circle
    from vllm_ascend.attention.attention_v1 import AscendAttentionMetadataBuilder

    builds: list[str] = []
    build = AscendAttentionMetadataBuilder.build

    def noted(self: Any, *args: Any, **kwargs: Any) -> Any:
        builds.append(type(self).__name__)
        return build(self, *args, **kwargs)

    AscendAttentionMetadataBuilder.build = noted
    return builds


def counted(case: dict[str, Any]) -> dict[str, Any]:
    """In a process of its own: rows of all proposals, and the target's last passes."""
    builds = count_builds()
    llm = started(case["engine"])
    runner = worker_of(llm).model_runner
    # What drafts, in either model runner; None without a draft.
    drafter = getattr(runner, "speculator", None) or getattr(runner, "drafter", None)
    proposals = measure_proposals(drafter) if drafter else []
    meter = measure_target(runner)
    builds.clear()
    generated(llm, case)
    return {
        "proposals": proposals,
        "target": {
            # Two calls a pass; the last passes are plain decodes of every request.
            "launches": dict(launches_of(meter.calls[-2:])),
            "builds": len(builds) - sum(row["builds"] for row in proposals),
            "passes": len(meter.calls) // 2,
        },
    }

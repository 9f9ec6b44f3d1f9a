# SPDX-License-Identifier: Apache-2.0
"""What a worker says: once it is warm, in metrics, and to ``collective_rpc``."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from vllm.distributed.parallel_state import is_global_first_rank

from mkv_ascend import host_versions, metrics
from mkv_ascend.adapters.common.options import options_of
from mkv_ascend.adapters.installed import adapter
from mkv_ascend.adapters.logging import get_logger
from mkv_ascend.attention.report import LayerRow, render
from mkv_ascend.layout.kind import Role
from mkv_ascend.layout.plan import BoundPlan
from mkv_ascend.layout.report import served_groups
from mkv_ascend.metrics import Store, folder
from mkv_ascend.rules.verdict import of_waiting

if TYPE_CHECKING:
    from vllm.config import VllmConfig

    from mkv_ascend.adapters.common.drafting.assembly import Assembly
    from mkv_ascend.adapters.common.drafting.capture import CaptureCost
    from mkv_ascend.adapters.common.rebuilding_states import Rebuilding


# A worker's metrics: gauges set once, counters written after each proposal.

REPLAYED, EAGER = "replayed", "eager"
PROPOSAL, PREFIX_HIT = "proposal", "prefix_hit"


def publish_gauges(store: Store, plan: BoundPlan | None, costs: Mapping[Role, CaptureCost]) -> None:
    """Tell what stays as it is: caches, if they are planned, and graphs."""
    if plan is not None:
        store.set(metrics.KV_BLOCKS, plan.num_blocks)
        store.set(metrics.KV_CACHE_BYTES, plan.total_bytes)
        for group in served_groups(plan):
            for role, used in group["used_bytes"].items():
                store.set(metrics.KV_BLOCK_BYTES, used, group["kv_group"], role)
            store.set(metrics.KV_BLOCK_IDLE_BYTES, group["idle_bytes"], group["kv_group"])
    for role, cost in costs.items():
        store.set(metrics.GRAPHS, cost.graphs, role)
        store.set(metrics.GRAPH_BYTES, cost.kept_bytes, role)


def publisher(store: Store, assembly: Assembly) -> Callable[[], None]:
    """What writes the counts of proposals; those of before, of captures, are left out."""
    proposal = assembly.proposal
    counts, needs, plan = proposal.counts, proposal.needs, proposal.plan
    built, read = needs.builds, plan.host_reads

    def publish() -> None:
        for eager, number in counts.proposals.items():
            mode, reason = (REPLAYED, "") if eager is None else (EAGER, eager.value)
            store.set(metrics.PROPOSALS, number, mode, reason)
        for k, number in counts.tokens.items():
            store.set(metrics.DRAFT_TOKENS, number, k)
        store.set(metrics.PASSES, counts.passes, PROPOSAL)
        store.set(metrics.PASSES, counts.prefix_hit_passes, PREFIX_HIT)
        store.set(metrics.METADATA_BUILDS, needs.builds - built)
        store.set(metrics.HOST_READS, plan.host_reads - read)

    publish()
    return publish


# What a worker says once it is warm: one block in the log, as JSON if asked for, and metrics.

logger = get_logger(__name__)
FORMAT_VERSION = 1
Result = TypeVar("Result")


@dataclass(frozen=True)
class Served:
    """What a worker serves.

    Attributes:
        rows: the backend and the KV group of each layer.
        assembly: None without a draft of ours.
        rebuilding: None where the draft needs none.
        plan: of the KV caches; None where vllm-ascend allocates them.
        plan_text: the plan with what a request takes of it.
    """

    rows: tuple[LayerRow, ...]
    assembly: Assembly | None
    rebuilding: Rebuilding | None
    plan: BoundPlan | None
    plan_text: str | None

    @property
    def costs(self) -> Mapping[Role, CaptureCost]:
        """What graphs of ours took; vLLM logs what all graphs take."""
        return {} if self.assembly is None else {Role.DRAFT: self.assembly.capturer.cost.total}

    def text(self) -> str:
        """One block of lines: backends, the draft and how it runs, memory, graphs."""
        parts = (self.assembly, self.rebuilding)
        texts = [render(self.rows), *(part.describe() for part in parts if part is not None)]
        if self.plan_text is not None:
            texts.append(self.plan_text)
        for role, cost in self.costs.items():
            if cost.graphs:
                texts.append(f"Graphs captured of the {role}: {cost}.")
        return "\n".join(texts)

    def to_dict(self) -> dict[str, Any]:
        """The same as plain values for JSON; sizes are in bytes."""
        return {
            "format": FORMAT_VERSION,
            "versions": {
                "vllm": host_versions.installed_version("vllm"),
                "vllm_ascend": host_versions.installed_version("vllm-ascend"),
            },
            "layers": [asdict(row) for row in self.rows],
            "draft": None if self.assembly is None else self.assembly.to_dict(),
            "kv_cache": None if self.plan is None else _caches(self.plan),
            "graphs": {str(role): asdict(cost) for role, cost in self.costs.items()},
        }


def _caches(plan: BoundPlan) -> dict[str, Any]:
    return {
        "num_blocks": plan.num_blocks,
        "bytes_per_block": plan.bytes_per_block,
        "total_bytes": plan.total_bytes,
        "groups": served_groups(plan),
    }


class Worker(Protocol):
    """A worker of either model runner, as far as its start-up is concerned."""

    rank: int
    vllm_config: VllmConfig

    def served(self) -> Served:
        """What this worker serves, once it is warm."""


def warm_up(worker: Worker, as_the_host: Callable[[], Result]) -> Result:
    """Warm ``worker`` up; then say what it serves, and count from now on."""
    result = as_the_host()
    finish(worker.rank, worker.vllm_config, worker.served())
    return result


def finish(rank: int, config: VllmConfig, served: Served) -> None:
    """Say what is served, and count from now on, on one rank per engine.

    The first rank of all says it, and the last stage's, which has the draft and writes the report.
    """
    counts = rank == counting_rank(config)
    reports = counts and config.parallel_config.data_parallel_index == 0
    if is_global_first_rank() or reports:
        logger.info("%s", "\n".join([served.text(), *scheduling(config)]))
    path = options_of(config).start_up_report
    if reports and path is not None:
        answer = {**served.to_dict(), "async_scheduling": config.scheduler_config.async_scheduling}
        Path(path).write_text(json.dumps(answer, indent=2) + "\n")
    where = folder()
    if where is None or not counts:
        return
    store = Store(where, labels_of(config))
    publish_gauges(store, served.plan, served.costs)
    if served.assembly is not None:
        served.assembly.publish_with(publisher(store, served.assembly))


def scheduling(config: VllmConfig) -> list[str]:
    """That steps wait for each other where they need not; vLLM's own line says they have to."""
    speculative, parallel = config.speculative_config, config.parallel_config
    if speculative is None or config.scheduler_config.async_scheduling:
        return []
    notes = of_waiting(
        adapter().RULES,
        speculative.method,
        waits=True,
        stages=parallel.pipeline_parallel_size,
        executor=parallel.distributed_executor_backend,
        padded=not speculative.disable_padded_drafter_batch,
    )
    return list(notes)


def counting_rank(config: VllmConfig) -> int:
    """The rank of an engine that counts: the first of the last stage, where drafts run."""
    parallel = config.parallel_config
    stages = parallel.pipeline_parallel_size
    return int((stages - 1) * (parallel.world_size // stages))


def labels_of(config: VllmConfig) -> dict[str, str]:
    """Labels of this engine's metrics, as vLLM gives them to its own."""
    return {
        "model_name": str(config.model_config.served_model_name),
        "engine": str(config.parallel_config.data_parallel_index),
    }


# What a worker answers to ``collective_rpc``, on every host and model runner.


def attention_layers(rows: Sequence[LayerRow]) -> list[dict[str, Any]]:
    """Which backend serves which layer; for ``collective_rpc("attention_layers")``."""
    return [asdict(row) for row in rows]


def draft_replays(assembly: Assembly | None) -> dict[str, Any]:
    """Numbers of requests for which the draft's passes are captured, and how often they were
    replayed; how often the host waited for the lengths of a proposal, replayed or not; and how many
    passes proposals took.

    For ``collective_rpc("draft_replays")``.
    """
    graphs = None if assembly is None else assembly.graphs
    proposal = None if assembly is None else assembly.proposal
    return {
        "captured": [] if graphs is None else sorted({shape.requests for shape in graphs.captured}),
        "replays": 0 if graphs is None else graphs.replays,
        "host_waits": 0 if proposal is None else proposal.plan.host_reads,
        "passes": 0 if proposal is None else proposal.counts.passes,
    }

# SPDX-License-Identifier: Apache-2.0
"""Every metric of mkv_ascend, and its way from a worker's process to the server's ``/metrics``.

Names begin as the package does. Colons, which vLLM's names have, are for recording rules.

prometheus_client has files for this: a process writes its values into memory-mapped files of a
folder, and a collector in another process reads them when it is asked. A write is a store into
memory; no process waits for another. vLLM itself uses them where there are several API servers, and
then ours lie beside vLLM's. Otherwise vLLM's registry is that of the server's process, and a
collector of ours reads a folder of our own there.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from prometheus_client import REGISTRY
from prometheus_client.mmap_dict import MmapedDict, mmap_key
from prometheus_client.multiprocess import MultiProcessCollector

from mkv_ascend import envs

COUNTER, GAUGE = "counter", "gauge"
COMMON_LABELS = ("model_name", "engine")
"""Labels of every metric, with the values that vLLM's own metrics have."""


@dataclass(frozen=True)
class Metric:
    """One metric; ``labels``: those beside ``COMMON_LABELS``."""

    name: str
    help: str
    labels: tuple[str, ...] = ()

    @property
    def family(self) -> str:
        """The name without what Prometheus asks of a counter's samples."""
        return self.name.removesuffix("_total")

    @property
    def kind(self) -> str:
        """A counter's name ends in ``_total``."""
        return GAUGE if self.family == self.name else COUNTER


PROPOSALS = Metric(
    "mkv_ascend_proposals_total",
    "Proposals, each for all requests of a step; replayed from an ACL graph, or eager and why.",
    ("mode", "reason"),
)
DRAFT_TOKENS = Metric(
    "mkv_ascend_proposed_tokens_total",
    "Draft tokens proposed, by the number proposed for each request (K).",
    ("k",),
)
VERIFIED = Metric(
    "mkv_ascend_verified_proposals_total",
    "Verified proposals of single requests, by their number of draft tokens (K).",
    ("k",),
)
ACCEPTED = Metric(
    "mkv_ascend_accepted_tokens_total",
    "Accepted draft tokens, by the number proposed (K) and the position from 0.",
    ("k", "position"),
)
DRAFT_GIVEN_UP = Metric(
    "mkv_ascend_draft_given_up",
    "1 where the draft was given up (drafting.give_up_below) and runs no more, else 0.",
)
PASSES = Metric(
    "mkv_ascend_draft_passes_total",
    "Forwards of the draft, replayed ones included: for proposals, or to read prefix hits.",
    ("purpose",),
)
METADATA_BUILDS = Metric(
    "mkv_ascend_metadata_builds_total",
    "Runs of attention metadata builders for the draft's passes.",
)
HOST_READS = Metric(
    "mkv_ascend_host_reads_total",
    "Times that the host waited for lengths of a proposal's passes from device memory.",
)
KV_BLOCKS = Metric(
    "mkv_ascend_kv_blocks",
    "KV blocks of the planned caches.",
)
KV_CACHE_BYTES = Metric(
    "mkv_ascend_kv_cache_bytes",
    "Device memory of the planned caches of one rank.",
)
KV_BLOCK_BYTES = Metric(
    "mkv_ascend_kv_block_bytes",
    "Bytes of one block that layers of a role (target, draft) use when the KV group holds it.",
    ("kv_group", "role"),
)
KV_BLOCK_IDLE_BYTES = Metric(
    "mkv_ascend_kv_block_idle_bytes",
    "Bytes of one block that no layer uses when the KV group holds it.",
    ("kv_group",),
)
GRAPHS = Metric(
    "mkv_ascend_graphs",
    "ACL graphs captured at start-up; those of the draft are counted.",
    ("role",),
)
GRAPH_BYTES = Metric(
    "mkv_ascend_graph_memory_bytes",
    "Device memory that these graphs keep.",
    ("role",),
)
METRICS = tuple(one for one in tuple(globals().values()) if isinstance(one, Metric))
"""All metrics, in the order of the documentation."""

VLLM_FOLDER = "PROMETHEUS_MULTIPROC_DIR"
"""The variable of prometheus_client; vLLM sets it where there are several API servers."""

OWN_PREFIX = "mkv_ascend_metrics_"
"""How the names of folders begin that servers make."""

_numbers = itertools.count()
_own_folder: tempfile.TemporaryDirectory[str] | None = None
_collector: MultiProcessCollector | None = None


def collect_from_workers() -> None:
    """Let the registry of this process tell what workers write, which it will start.

    Once per process; nothing where vLLM collects from files itself.
    """
    global _own_folder, _collector
    if _collector is not None or VLLM_FOLDER in os.environ:
        return
    where = envs.METRICS.get()
    # Processes of one server share its folder; a server that another one started has its own.
    is_first = multiprocessing.parent_process() is None
    if where is None or (is_first and where.name.startswith(OWN_PREFIX)):
        _own_folder = tempfile.TemporaryDirectory(prefix=OWN_PREFIX)
        where = Path(_own_folder.name)
        os.environ[envs.METRICS.name] = _own_folder.name
    _collector = MultiProcessCollector(REGISTRY, str(where))


def folder() -> Path | None:
    """Where this process leaves its values; None where nobody would read them."""
    of_vllm = os.environ.get(VLLM_FOLDER)
    return envs.METRICS.get() if of_vllm is None else Path(of_vllm)


class Store:
    """Values of one writer; a process may have several.

    Args:
        where: the folder.
        common: values of ``COMMON_LABELS``.
    """

    def __init__(self, where: Path, common: Mapping[str, str]) -> None:
        # No name that prometheus_client takes in this process for metrics of vLLM's.
        own = f"mkv{os.getpid()}-{next(_numbers)}.db"
        self._counters = MmapedDict(str(where / f"counter_{own}"))
        self._gauges = MmapedDict(str(where / f"gauge_mostrecent_{own}"))
        self._common = dict(common)
        self._keys: dict[tuple[str, tuple[object, ...]], str] = {}
        self._written: dict[str, float] = {}

    def set(self, metric: Metric, value: float, *labels: object) -> None:
        """Set one value; ``labels``: of ``metric.labels``, in their order.

        Cheap where the value has not changed: counts are told after each proposal.
        """
        key = self._keys.get((metric.name, labels))
        if key is None:
            key = self._keys[metric.name, labels] = self._key(metric, tuple(map(str, labels)))
        if self._written.get(key) == value:
            return
        self._written[key] = value
        if metric.kind == COUNTER:
            self._counters.write_value(key, value, 0.0)
        else:
            self._gauges.write_value(key, value, time.time())

    def _key(self, metric: Metric, values: tuple[str, ...]) -> str:
        labels = {**self._common, **dict(zip(metric.labels, values, strict=True))}
        names = list(labels)
        return mmap_key(metric.family, metric.name, names, list(labels.values()), metric.help)

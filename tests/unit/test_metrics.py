# SPDX-License-Identifier: Apache-2.0
"""Values of workers reach a collector of another process; names are those Prometheus asks for."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.parser import text_string_to_metric_families

from mkv_ascend import envs, metrics
from mkv_ascend.metrics import Store

COMMON = {"model_name": "m", "engine": "0"}
WRITER = """
import sys
from pathlib import Path
from mkv_ascend import metrics
from mkv_ascend.metrics import Store
store = Store(Path(sys.argv[1]), {"model_name": "m", "engine": sys.argv[2]})
store.set(metrics.HOST_READS, 1)
store.set(metrics.HOST_READS, float(sys.argv[3]))
store.set(metrics.KV_BLOCKS, float(sys.argv[3]))
"""


def collected(folder: Path) -> dict[tuple[str, tuple[str, ...]], float]:
    """Name and values of labels beside the model's -> value, as a server would show them."""
    registry = CollectorRegistry()
    MultiProcessCollector(registry, str(folder))
    page = generate_latest(registry).decode()
    return {
        (sample.name, tuple(v for k, v in sorted(sample.labels.items()) if k != "model_name")):
        sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    }  # fmt: skip


def test_values_of_other_processes_are_shown_by_engine(tmp_path: Path) -> None:
    for engine, value in (("0", "7"), ("1", "5")):
        command = [sys.executable, "-c", WRITER, str(tmp_path), engine, value]
        subprocess.run(command, check=True)
    reads, blocks = metrics.HOST_READS.name, metrics.KV_BLOCKS.name
    assert collected(tmp_path) == {
        (reads, ("0",)): 7.0,
        (reads, ("1",)): 5.0,
        (blocks, ("0",)): 7.0,
        (blocks, ("1",)): 5.0,
    }


def test_two_writers_of_one_process_do_not_share_a_file(tmp_path: Path) -> None:
    """With one rank the scheduler's process is the worker's, too."""
    worker, scheduler = Store(tmp_path, COMMON), Store(tmp_path, COMMON)
    worker.set(metrics.PROPOSALS, 3, "eager", "mixed_batch")
    scheduler.set(metrics.ACCEPTED, 4, 3, 1)
    worker.set(metrics.PROPOSALS, 9, "replayed", "")
    scheduler.set(metrics.ACCEPTED, 6, 3, 1)
    assert collected(tmp_path) == {
        (metrics.PROPOSALS.name, ("0", "eager", "mixed_batch")): 3.0,
        (metrics.PROPOSALS.name, ("0", "replayed", "")): 9.0,
        (metrics.ACCEPTED.name, ("0", "3", "1")): 6.0,
    }


def test_counts_of_workers_add_up_and_of_gauges_the_latest_is_shown(tmp_path: Path) -> None:
    """Also one that goes back to what it was."""
    one, other = Store(tmp_path, COMMON), Store(tmp_path, COMMON)
    for writer, values in ((other, (4, 5)), (one, (7, 8, 7))):
        for value in values:
            writer.set(metrics.DRAFT_GIVEN_UP, value)
            writer.set(metrics.HOST_READS, value + 1)
    assert collected(tmp_path) == {
        (metrics.HOST_READS.name, ("0",)): 6.0 + 8.0,
        (metrics.DRAFT_GIVEN_UP.name, ("0",)): 7.0,
    }


def test_a_value_must_have_all_labels_of_its_metric(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="zip"):
        Store(tmp_path, COMMON).set(metrics.PROPOSALS, 1, "eager")


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> CollectorRegistry:
    """As in a server's process that has just started."""
    registry = CollectorRegistry()
    monkeypatch.setattr(metrics, "REGISTRY", registry)
    monkeypatch.setattr(metrics, "_collector", None)
    monkeypatch.setattr(metrics, "_own_folder", None)
    for name in (metrics.VLLM_FOLDER, envs.METRICS.name):
        # Set and deleted, so that what the test sets is taken back.
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    return registry


def test_the_servers_registry_shows_what_its_workers_write(registry: CollectorRegistry) -> None:
    assert metrics.folder() is None
    metrics.collect_from_workers()
    where = metrics.folder()
    assert where is not None
    metrics.collect_from_workers()  # vLLM copies its configuration, and asks again
    assert metrics.folder() == where
    Store(where, COMMON).set(metrics.KV_BLOCKS, 11)
    shown = generate_latest(registry).decode()
    assert 'mkv_ascend_kv_blocks{engine="0",model_name="m"} 11.0' in shown


def test_a_folder_that_the_user_names_is_taken(
    registry: CollectorRegistry, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(envs.METRICS.name, str(tmp_path))
    metrics.collect_from_workers()
    assert metrics.folder() == tmp_path
    Store(tmp_path, COMMON).set(metrics.KV_BLOCKS, 11)
    assert b" 11.0" in generate_latest(registry)


def test_the_folder_of_a_server_that_started_this_one_is_left_alone(
    registry: CollectorRegistry, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    theirs = tmp_path / f"{metrics.OWN_PREFIX}1"
    theirs.mkdir()
    monkeypatch.setenv(envs.METRICS.name, str(theirs))
    Store(theirs, COMMON).set(metrics.KV_BLOCKS, 11)
    metrics.collect_from_workers()
    assert generate_latest(registry) == b""
    assert metrics.folder() not in (None, theirs)


def test_a_process_that_a_server_started_writes_to_the_servers_folder(
    registry: CollectorRegistry, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The engine core makes vLLM's configuration anew, and its workers inherit its variables.

    An API server may be such a process, too.
    """
    monkeypatch.setattr(metrics.multiprocessing, "parent_process", lambda: object())
    theirs = tmp_path / f"{metrics.OWN_PREFIX}1"
    theirs.mkdir()
    monkeypatch.setenv(envs.METRICS.name, str(theirs))
    metrics.collect_from_workers()
    assert metrics.folder() == theirs
    Store(theirs, COMMON).set(metrics.KV_BLOCKS, 11)
    assert b" 11.0" in generate_latest(registry)


def test_where_vllm_collects_from_files_ours_lie_beside_its_own(
    registry: CollectorRegistry, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """With several API servers, each of which reads that folder."""
    monkeypatch.setenv(metrics.VLLM_FOLDER, str(tmp_path))
    metrics.collect_from_workers()
    assert metrics.folder() == tmp_path
    assert not envs.METRICS.is_set()
    Store(tmp_path, COMMON).set(metrics.KV_BLOCKS, 11)
    assert generate_latest(registry) == b""


@pytest.mark.parametrize("metric", metrics.METRICS, ids=lambda metric: metric.name)
def test_names_are_as_prometheus_asks(metric: metrics.Metric) -> None:
    assert re.fullmatch(r"mkv_ascend(_[a-z]+)+", metric.name)
    assert metric.name.endswith("_total") == (metric.kind == metrics.COUNTER)
    # vLLM 0.23.0 unregisters collectors whose names hold this word.
    assert "vllm" not in metric.name
    assert not {"le", "job", "instance", *metrics.COMMON_LABELS} & set(metric.labels)

# SPDX-License-Identifier: Apache-2.0
"""What is counted as replayed from a graph where the host drafts."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.support import graph_replays


class Graph:
    """Stands for the device's; ``UpdatableGraph`` of vllm-ascend is a subclass of it, too."""

    def replay(self) -> None:
        """Nothing is launched."""


class HostSpeculator:
    """Replays as many graphs as the batch says, and drafts them."""

    def propose(self, batch: int, *, dummy_run: bool = False) -> int:
        for _ in range(batch):
            type("Updatable", (Graph,), {})().replay()
        return batch


@pytest.fixture(autouse=True)
def _device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "npu", SimpleNamespace(NPUGraph=Graph), raising=False)
    monkeypatch.setattr(Graph, "replay", Graph.replay)


def executor(speculator: Any) -> Any:
    runner = SimpleNamespace(speculator=speculator)
    return SimpleNamespace(
        driver_worker=SimpleNamespace(worker=SimpleNamespace(model_runner=runner))
    )


def test_proposals_of_the_host_count_where_they_replay() -> None:
    """A graph of the target, an eager proposal and one for no request count nothing."""
    speculator = HostSpeculator()
    noted = graph_replays.of_host_proposals(executor(speculator))
    Graph().replay()
    assert [speculator.propose(count) for count in (1, 0, 2)] == [1, 0, 2]
    assert speculator.propose(3, dummy_run=True) == 3
    assert noted == [1, 2]


def test_our_proposals_are_counted_by_ourselves() -> None:
    speculator = type("Ours", (HostSpeculator,), {"__module__": "mkv_ascend.somewhere"})()
    noted = graph_replays.of_host_proposals(executor(speculator))
    speculator.propose(1)
    assert noted == []


def test_engines_without_a_speculator_of_this_process_have_none() -> None:
    for one in (SimpleNamespace(), executor(None)):
        assert graph_replays.of_host_proposals(one) == []

# SPDX-License-Identifier: Apache-2.0
"""Stages before the last one wait until their inputs are on the device."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from mkv_ascend.adapters.common import pipeline


@pytest.mark.parametrize("earlier", [True, False])
def test_a_stage_that_samples_nothing_waits_for_its_inputs(
    earlier: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the last one vLLM has no event without asynchronous scheduling, and needs none."""
    events = {"npu:1": SimpleNamespace(Event=lambda: "an event of the device")}
    monkeypatch.setattr(torch, "get_device_module", events.__getitem__)
    monkeypatch.setattr(pipeline, "is_first_stage", lambda config: earlier)
    runner: Any = SimpleNamespace(vllm_config=None, prepare_inputs_event=None, device="npu:1")
    pipeline.keep_inputs(runner)
    assert runner.prepare_inputs_event == ("an event of the device" if earlier else None)


def test_the_hosts_own_event_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, "is_first_stage", lambda config: True)
    own = object()
    runner: Any = SimpleNamespace(vllm_config=None, prepare_inputs_event=own)
    pipeline.keep_inputs(runner)
    assert runner.prepare_inputs_event is own

# SPDX-License-Identifier: Apache-2.0
"""Graphs that can be captured are not refused; those of another host or model runner neither."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from mkv_ascend.adapters import installed
from mkv_ascend.attention.entry import DeviceGeneration
from mkv_ascend.checks.about_captures import CHECKS
from mkv_ascend.checks.facts import DeviceFacts, ServeFacts
from mkv_ascend.checks.model import read_model_facts
from mkv_ascend.config import MkvConfig
from mkv_ascend.layout.kind import Role

CONFIGS = Path(__file__).resolve().parents[2] / "data" / "configs"
OF_0_30, OF_0_23 = (adapter.RULES for adapter in installed.adapters())
DEVICE = DeviceFacts(None, None, DeviceGeneration.A2, "here")
DENSE, MLA = "Llama-3.1-8B", "DeepSeek-V3"
SPARSE = "DeepSeek-V3 whose layers choose their keys"
WHOLE, BOTH = {"cudagraph_mode": "FULL_DECODE_ONLY"}, {"cudagraph_mode": "FULL_AND_PIECEWISE"}


def codes(compilation, model=DENSE, rules=OF_0_23, runner="v1", **more):
    target = read_model_facts(Role.TARGET, str(CONFIGS / (MLA if model == SPARSE else model)))
    if model == SPARSE:
        target = replace(target, text={**target.text, "index_topk": 2048})
    engine = {"model": model, "compilation_config": compilation, **more}
    facts = ServeFacts(engine, MkvConfig(), target, DEVICE, rules=rules, runner=runner)
    return [refusal.code for check in CHECKS for refusal in check(facts)]


@pytest.mark.parametrize(
    ("compilation", "model", "rules", "runner", "refused"),
    [
        ({"mode": 0, **WHOLE}, DENSE, OF_0_23, "v1", True),
        ({"mode": "NONE", **WHOLE}, MLA, OF_0_23, "v1", True),
        ({"mode": 0, **BOTH}, DENSE, OF_0_23, "v1", False),  # nothing is captured
        ({"mode": 0}, MLA, OF_0_23, "v1", False),
        ({"mode": 1, **WHOLE}, DENSE, OF_0_23, "v1", False),
        ({"mode": 3, **WHOLE}, MLA, OF_0_23, "v1", False),
        (WHOLE, MLA, OF_0_23, "v1", False),
        ({"mode": 0, **WHOLE}, DENSE, OF_0_30, "v1", False),
        ({"mode": 0, **WHOLE}, SPARSE, OF_0_30, "v1", False),
        ({"mode": 0, **BOTH}, MLA, OF_0_30, "v1", True),
        ({"mode": 2, **WHOLE}, MLA, OF_0_30, "v1", True),
        ({"mode": 0, **BOTH}, MLA, OF_0_30, "v2", False),
        ({"mode": 0, "cudagraph_mode": "PIECEWISE"}, MLA, OF_0_30, "v1", False),
    ],
)
def test_whole_steps_of_a_model_that_is_not_compiled(compilation, model, rules, runner, refused):
    expected = ["graph-mode"] if refused else []
    assert codes(compilation, model, rules, runner) == expected
    assert codes(compilation, model, rules, runner, enforce_eager=True) == []


def test_a_level_without_compiling_is_such_a_mode():
    assert codes(WHOLE, optimization_level="0") == ["graph-mode"]
    assert codes(WHOLE, optimization_level="1") == []


def test_a_step_that_nobody_told_may_end_before_the_largest_size():
    sizes = {"cudagraph_capture_sizes": [8, 2048, 8192]}
    assert codes({**sizes, "max_cudagraph_capture_size": 2048}) == []
    assert codes({**sizes, "max_cudagraph_capture_size": 64}) == ["capture-sizes"]
    short = {"cudagraph_capture_sizes": [8, 64], "max_cudagraph_capture_size": 8}
    assert codes(short) == ["capture-sizes"]
    told = {"max_num_batched_tokens": 8192}
    assert codes({**sizes, "max_cudagraph_capture_size": 2048}, **told) == ["capture-sizes"]

# SPDX-License-Identifier: Apache-2.0
"""KV caches on model runner V2 come from the plan, which is model runner V1's."""

import pytest
import torch
import vllm_ascend.ops  # noqa: F401  before the rest of it: its modules import in a circle

from tests.support import engine, hosts
from tests.support.pairs import scenario
from tests.support.stock import RUNNER_V2

hosts.skip_module_unless("vllm_ascend_0_30", "0.23.0 runs model runner V1 alone")

from vllm.v1.kv_cache_interface import FullAttentionSpec  # noqa: E402
from vllm_ascend.worker.v2 import attn_utils  # noqa: E402

from mkv_ascend.adapters.vllm_ascend_0_30.v2 import planned_caches  # noqa: E402

pytestmark = pytest.mark.core

PLANNED = "KV cache plan"


def plan_in(log: str) -> list[str]:
    """The lines of the plan's table in an engine's log, without what the log puts before them."""
    lines = log.splitlines()
    first = next(index for index, line in enumerate(lines) if PLANNED in line)
    return [line.partition("] ")[2] or line for line in lines[first : first + 8]]


def test_both_runners_have_one_plan():
    """For a target with windows and a draft with others; three groups share bytes."""
    cases = [
        scenario("gemma3", "gemma3_draft", prompts=[[5, 6, 7]], max_tokens=4, environment=variables)
        for variables in ({}, RUNNER_V2)
    ]
    v1, v2 = (engine.run(case) for case in cases)
    assert "npu model runner v2" in v2.log
    assert v2.num_gpu_blocks == v1.num_gpu_blocks
    assert plan_in(v2.log) == plan_in(v1.log)


def specs_of(values):
    """Of layers with keys of 128 elements, the second with ``values`` per value and half a page."""
    sizes = {"target": (2, 128), "draft": (1, values)}
    return {
        name: FullAttentionSpec(
            block_size=128,
            num_kv_heads=heads,
            head_size=128,
            head_size_v=size,
            dtype=torch.bfloat16,
        )
        for name, (heads, size) in sizes.items()
    }


def test_pages_are_aligned_as_vllm_ascend_does_where_it_can():
    wanted, found = specs_of(128), specs_of(128)
    attn_utils._align_hybrid_attention_page_sizes(wanted)
    assert wanted != found
    with planned_caches.pages_of_any_sizes() as refusals:
        attn_utils._align_hybrid_attention_page_sizes(found)
    assert found == wanted
    assert not refusals


def test_other_pages_stay_as_they_are_and_are_refused_where_nothing_is_planned(monkeypatch):
    specs = specs_of(64)
    with planned_caches.pages_of_any_sizes() as refusals:
        attn_utils._align_hybrid_attention_page_sizes(specs)
    assert specs == specs_of(64)
    monkeypatch.setattr(planned_caches, "get_layers_from_vllm_config", lambda *_: {})
    monkeypatch.setattr(planned_caches, "cached_specs", lambda *_: ())
    monkeypatch.setattr(planned_caches, "why_not_planned_groups", lambda *_: "a connector")
    caches = planned_caches.PlannedCaches(None, (), refusals)
    with pytest.raises(ValueError, match="Cannot align hybrid attention K/V pages for draft"):
        caches.allocate(lambda *_: {}, None, None, None, [])
    unplanned = planned_caches.PlannedCaches(None, ())
    assert unplanned.allocate(lambda *_: {"a": 1}, None, None, None, []) == {"a": 1}

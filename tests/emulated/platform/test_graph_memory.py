# SPDX-License-Identifier: Apache-2.0
"""The KV cache leaves room for graphs: they are measured before it is sized."""

import re
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from mkv_ascend.adapters.common.graphs import LayersAsTheyWere
from tests.support import engine, hosts
from tests.support.emulation import ON_EMULATOR
from tests.support.pairs import assert_greedy_tokens_of_reference, scenario
from tests.support.stock import each_runner
from tests.support.tiny_models import model_directory

pytestmark = pytest.mark.skipif(not ON_EMULATOR, reason="sets the emulated device's memory")

MIB = 1 << 20
# Two layers of target and draft each, keys and values, 2 heads of 64, 128 tokens, float32.
BLOCK_BYTES = 4 * 2 * 2 * 64 * 128 * 4
MEMORY, UTILIZATION = 64, 0.97
MEASURED = re.compile(r"Graphs will take about ([\d.]+) MiB .* gets ([\d.]+) of ([\d.]+) MiB")


def sized(runner, **variables):
    """All but 2 MiB are asked for: less than what a pool of graphs begins with."""
    return scenario(
        "llama_target",
        "llama_draft",
        engine={"kv_cache_memory_bytes": None, "gpu_memory_utilization": UTILIZATION},
        graphs="FULL_DECODE_ONLY",
        capture_sizes=(4, 8, 16, 32),
        environment={"EMULATED_NPU_MEMORY": f"{MEMORY}MiB", **runner, **variables},
    )


@pytest.mark.host("0.23", cases=["v1"])
@pytest.mark.nightly("other cases of it stay", cases=["v2"])
@each_runner
def test_graphs_fit_beside_the_cache(runner):
    """What was captured to measure is gone: the cache is as large as said, and serves requests.

    The first caches had as many blocks as the largest graph has tokens. Requests use others. The
    worker has a process of its own, as with several ranks: the engine core's has prepared more.
    """
    case = sized(runner)
    case = replace(case, engine={**case.engine, "distributed_executor_backend": "mp"})
    result = engine.run(case)
    assert_greedy_tokens_of_reference(case, result)
    assert result.draft_replays > 5
    taken, left, available = map(float, MEASURED.search(result.log).groups())
    assert 2 < taken < 20
    assert left == pytest.approx(available - taken, abs=0.02)
    assert result.num_gpu_blocks == left * MIB // BLOCK_BYTES


@hosts.only_on("vllm_ascend_0_23", "rows of 0.30.0rc2 are no longer than a block of states")
def test_they_are_measured_against_pages_of_one_block():
    """As many pages as the largest graph has tokens: shared ones are ten times a block's size."""
    case = sized({})
    limits = {"max_num_seqs": 8, "max_num_batched_tokens": 256}
    memory = {"EMULATED_NPU_MEMORY": "64MiB"}
    case = replace(
        case,
        model=str(model_directory("lfm2")),
        engine={**case.engine, **limits, "gpu_memory_utilization": 0.9},
        environment={**case.environment, **memory},
    )
    result = engine.run(case)
    assert_greedy_tokens_of_reference(case, result)
    assert MEASURED.search(result.log)
    (page,) = re.findall(r"KV cache plan: 2 groups, \d+ pages of ([\d.]+) MiB", result.log)
    assert 32 * float(page) > 40, "they would fit"


@pytest.mark.nightly("what fails without it, which a new host may mend")
def test_without_being_measured_they_do_not_fit():
    with pytest.raises(engine.EngineFailedError, match="NPU out of memory"):
        engine.run(sized({}, VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS="0"))


def layer_with_a_cache(memory):
    """As it is noted before it has one, and the layer once its implementation has run."""
    layer = SimpleNamespace(kv_cache=[], impl=SimpleNamespace(key_cache=None))
    before = LayersAsTheyWere([layer])
    layer.kv_cache = (memory[:8], memory[8:])
    layer.impl.key_cache, layer.impl.slots = layer.kv_cache[0], memory[4:]
    before.note_caches()
    return before, layer


@pytest.mark.core
@pytest.mark.host("0.23")
def test_implementations_let_go_of_the_first_caches():
    """vllm-ascend's take a cache at their first pass, and would serve requests with it."""
    before, layer = layer_with_a_cache(torch.zeros(16, device="npu"))
    before.drop_caches(lambda: None)
    assert layer == SimpleNamespace(kv_cache=[], impl=SimpleNamespace(key_cache=None))


@pytest.mark.host("0.23")
def test_a_cache_that_something_holds_is_told():
    memory = torch.zeros(16, device="npu")
    before, _ = layer_with_a_cache(memory)
    with pytest.raises(RuntimeError, match="2 of 2 caches"):
        before.drop_caches(lambda: None)

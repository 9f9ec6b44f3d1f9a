# SPDX-License-Identifier: Apache-2.0
"""The KV cache leaves room for graphs: they are measured before it is sized."""

import re
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
import vllm_ascend.ops  # noqa: F401 - first of vllm-ascend: its modules import each other in circles
from vllm.engine.arg_utils import EngineArgs

from mkv_ascend.adapters.common.graphs import LayersAsTheyWere
from tests.support import engine, hosts
from tests.support.emulation import ON_EMULATOR
from tests.support.pairs import run_greedy, scenario
from tests.support.stock import each_runner
from tests.support.tiny_models import model_directory

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


@pytest.mark.skipif(not ON_EMULATOR, reason="sets the emulated device's memory")
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
    result = run_greedy(case)
    assert result.draft_replays > 5
    taken, left, available = map(float, MEASURED.search(result.log).groups())
    assert 2 < taken < 20
    assert left == pytest.approx(available - taken, abs=0.02)
    assert result.num_gpu_blocks == left * MIB // BLOCK_BYTES


@pytest.mark.skipif(not ON_EMULATOR, reason="sets the emulated device's memory")
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
    result = run_greedy(case)
    assert MEASURED.search(result.log)
    (page,) = re.findall(r"KV cache plan: 2 groups, \d+ pages of ([\d.]+) MiB", result.log)
    assert 32 * float(page) > 40, "they would fit"


@pytest.mark.skipif(not ON_EMULATOR, reason="sets the emulated device's memory")
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


@pytest.mark.skipif(not ON_EMULATOR, reason="sets the emulated device's memory")
@pytest.mark.core
@pytest.mark.host("0.23")
def test_implementations_let_go_of_the_first_caches():
    """vllm-ascend's take a cache at their first pass, and would serve requests with it."""
    before, layer = layer_with_a_cache(torch.zeros(16, device="npu"))
    before.drop_caches(lambda: None)
    assert layer == SimpleNamespace(kv_cache=[], impl=SimpleNamespace(key_cache=None))


@pytest.mark.skipif(not ON_EMULATOR, reason="sets the emulated device's memory")
@pytest.mark.host("0.23")
def test_a_cache_that_something_holds_is_told():
    memory = torch.zeros(16, device="npu")
    before, _ = layer_with_a_cache(memory)
    with pytest.raises(RuntimeError, match="2 of 2 caches"):
        before.drop_caches(lambda: None)


# Memory is accounted for: profiling sizes the cache by it, and too little of it is said so.
# Two layers, keys and values, 2 heads of 64 elements, blocks of 128 tokens, float32.
BYTES_OF_BLOCK = 2 * 2 * 2 * 64 * 128 * 4


def profiled(memory_mib, utilization):
    return scenario(
        "llama_target",
        prompts=scenario("llama_target").prompts[:4],
        engine={"kv_cache_memory_bytes": None, "gpu_memory_utilization": utilization},
        environment={"EMULATED_NPU_MEMORY": f"{memory_mib}MiB"},
    )


@pytest.mark.skipif(not ON_EMULATOR, reason="sets the emulated device's memory")
@pytest.mark.host("0.23")
def test_profiling_gives_the_cache_what_the_model_leaves():
    case = profiled(256, 0.5)
    result = run_greedy(case)
    cache = result.num_gpu_blocks * BYTES_OF_BLOCK
    # Less than half of the device, by the weights and the largest pass; most of it all the same.
    assert 0.5 * 128 * MIB < cache < 128 * MIB


@pytest.mark.skipif(not ON_EMULATOR, reason="sets the emulated device's memory")
@pytest.mark.host("0.23")
def test_a_device_that_is_too_small_ends_in_an_honest_error():
    with pytest.raises(engine.EngineFailedError) as failure:
        engine.run(profiled(2, 0.9))
    text = str(failure.value)
    assert "out of memory" in text
    assert "2.00 MiB" in text or "2097152" in text


# Sizes of graphs that nobody asks for serve as many requests as there may be at once.


def sizes(requests, k, asked=None, **limits):
    """The sizes of graphs, in tokens, of an engine for so many requests that verify K tokens."""
    draft = {"model": str(model_directory("llama_draft")), "num_speculative_tokens": k}
    config = EngineArgs(
        model=str(model_directory("llama_target")),
        skip_tokenizer_init=True,
        max_model_len=512,
        max_num_seqs=requests,
        compilation_config={"cudagraph_mode": "FULL_DECODE_ONLY", **(asked or {})},
        speculative_config=draft if k else None,
        **{"max_num_batched_tokens": 512, **limits},
    ).create_engine_config()
    made = config.compilation_config
    assert made.cudagraph_capture_sizes[-1] == made.max_cudagraph_capture_size
    return made.cudagraph_capture_sizes


@pytest.mark.core
@pytest.mark.host("0.23")
@pytest.mark.parametrize(
    ("requests", "k"), [(4, 2), (6, 5), (12, 2), (20, 8), (12, 0), (20, 0), (32, 3)]
)
def test_the_largest_graph_serves_all_requests(requests, k):
    assert sizes(requests, k)[-1] == requests * (k + 1)


@pytest.mark.core
@pytest.mark.host("0.23")
def test_the_largest_graph_has_no_more_tokens_than_a_step():
    assert sizes(250, 2)[-1] == 512
    assert sizes(12, 2, max_num_batched_tokens=30, enable_chunked_prefill=True)[-1] == 30


@pytest.mark.core
@pytest.mark.host("0.23")
def test_sizes_that_are_asked_for_are_taken():
    assert sizes(12, 2, {"cudagraph_capture_sizes": [8, 16]}) == [8, 16]


@pytest.mark.core
@pytest.mark.host("0.23")
@hosts.only_on("vllm_ascend_0_23", "0.30.0rc2 adds the largest graph to its own default alone")
def test_a_largest_size_that_is_asked_for_is_captured():
    assert sizes(32, 2, {"max_cudagraph_capture_size": 36})[-1] == 36

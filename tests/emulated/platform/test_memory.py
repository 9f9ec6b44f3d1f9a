# SPDX-License-Identifier: Apache-2.0
"""Memory is accounted for: profiling sizes the cache by it, and too little of it is said so."""

import pytest

from tests.support import engine
from tests.support.emulation import ON_EMULATOR
from tests.support.pairs import assert_greedy_tokens_of_reference, scenario

MIB = 1 << 20
# Two layers, keys and values, 2 heads of 64 elements, blocks of 128 tokens, float32.
BLOCK_BYTES = 2 * 2 * 2 * 64 * 128 * 4

pytestmark = [
    pytest.mark.skipif(not ON_EMULATOR, reason="sets the emulated device's memory"),
    pytest.mark.host("0.23"),
]


def profiled(memory_mib, utilization):
    return scenario(
        "llama_target",
        prompts=scenario("llama_target").prompts[:4],
        engine={"kv_cache_memory_bytes": None, "gpu_memory_utilization": utilization},
        environment={"EMULATED_NPU_MEMORY": f"{memory_mib}MiB"},
    )


def test_profiling_gives_the_cache_what_the_model_leaves():
    case = profiled(256, 0.5)
    result = engine.run(case)
    assert_greedy_tokens_of_reference(case, result)
    cache = result.num_gpu_blocks * BLOCK_BYTES
    # Less than half of the device, by the weights and the largest pass; most of it all the same.
    assert 0.5 * 128 * MIB < cache < 128 * MIB


def test_a_device_that_is_too_small_ends_in_an_honest_error():
    with pytest.raises(engine.EngineFailedError) as failure:
        engine.run(profiled(2, 0.9))
    text = str(failure.value)
    assert "out of memory" in text
    assert "2.00 MiB" in text or "2097152" in text

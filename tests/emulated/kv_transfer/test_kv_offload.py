# SPDX-License-Identifier: Apache-2.0
"""vllm-ascend's connectors that keep blocks in host memory, on planned caches and with a draft."""

import re

import pytest

from tests.support import hosts, reference
from tests.support.pairs import (
    run_judged,
    scenario,
)
from tests.support.prompts import text_prompts as texts
from tests.support.tiny_models import model_directory

BLOCK = 128


def prompts(target, lengths):
    """Prompts of these lengths that differ from their second token on."""
    ids = reference.token_ids(model_directory(target), " ".join(texts() * 8))
    starts = range(0, 17 * len(lengths), 17)
    return [
        ids[:1] + ids[start + 1 : start + length]
        for start, length in zip(starts, lengths, strict=True)
    ]


def transfer(name, **more):
    extra = {"cpu_bytes_to_use": 128 << 20, **more.pop("extra", {})}
    return {
        "kv_connector": name,
        "kv_role": "kv_both",
        "kv_connector_extra_config": extra,
        **more,
    }


def run_and_judge(case):
    result = run_judged(case)
    assert result.mean_acceptance_length > 1.5
    return result


@pytest.mark.host("0.23")
def test_blocks_come_back_from_host_memory():
    """Four prompts of three whole blocks do not fit into the pool: the first round drops them."""
    case = scenario(
        "llama_target",
        "llama_draft",
        prompts=prompts("llama_target", [400, 390, 395, 398]),
        max_tokens=8,
        repeats=2,
        engine={
            "kv_transfer_config": transfer("SimpleCPUOffloadConnector"),
            "num_gpu_blocks_override": 8,
            "max_num_seqs": 1,
        },
    )
    result = run_and_judge(case)
    assert result.cached_tokens[:4] == [0] * 4
    # At most 7 of the 12 blocks are still on the device, none of them the first two prompts'.
    assert result.cached_tokens[4:6] == [3 * BLOCK] * 2


@pytest.mark.skipif(
    not hosts.ADAPTER.RULES.offloads_split_caches,
    reason="vllm-ascend has no worker for OffloadingConnector here, and it is refused",
)
def test_blocks_of_several_groups_come_back_by_vllms_own_offload():
    """A pool of 22 blocks holds those of two prompts, and each round has eight prompts."""
    lengths = [400, 390, 395, 398, 397, 396, 394, 393]
    case = scenario(
        "gemma3",
        "llama_draft",
        prompts=prompts("gemma3", lengths),
        max_tokens=8,
        repeats=2,
        engine={
            "kv_transfer_config": transfer(
                "OffloadingConnector", extra={"cpu_bytes_to_use": 512 << 20}
            ),
            "num_gpu_blocks_override": 22,
            "max_num_seqs": 1,
            "max_model_len": 512,
        },
    )
    result = run_and_judge(case)
    assert result.cached_tokens == [0] * len(lengths) + [3 * BLOCK] * len(lengths)


@pytest.mark.host("0.23")
def test_preempted_requests_come_back_from_host_memory():
    """Several KV groups that share buffers, a draft among them."""
    case = scenario(
        "gemma3",
        "llama_draft",
        prompts=prompts("gemma3", [250, 248, 246, 245, 244, 243]),
        engine={
            "kv_transfer_config": transfer(
                "CountingOffload",
                kv_role="kv_consumer",  # vllm-ascend's scheduler for it wants that role
                kv_connector_module_path="tests.emulated.kv_transfer.recording_connector",
                extra={"enable_offload_prefix_caching": True},
            ),
            "num_gpu_blocks_override": 16,
            "additional_config": {"recompute_scheduler_enable": True},
        },
    )
    result = run_and_judge(case)
    assert result.preemptions > 0
    restored = [int(number) for number in re.findall(r"restored (\d+) blocks", result.log)]
    assert sum(restored) > 0

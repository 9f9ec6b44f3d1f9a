# SPDX-License-Identifier: Apache-2.0
"""Drafts beside states that 0.30.0rc2's adapter cannot take back are refused before the start."""

from types import SimpleNamespace

import pytest
import torch

from mkv_ascend.adapters.vllm_ascend_0_30.common import start_checks
from tests.support import hosts

GDN = SimpleNamespace(
    model="qwen3-next",
    is_hybrid=True,
    is_attention_free=False,
    hf_text_config=SimpleNamespace(linear_num_value_heads=4),
)


BLOCK = 128
LONG_PROMPT = SimpleNamespace(
    num_computed_tokens=0, num_prompt_tokens=1000, num_tokens=1000, shared_prefix_boundary=0
)


def asked_for(most, kept_back, chunk, scheduled=None):
    return SimpleNamespace(
        cache_config=SimpleNamespace(mamba_cache_mode="align", block_size=BLOCK),
        speculative_config=SimpleNamespace(max_num_new_slots_for_drafting=kept_back),
        scheduler_config=SimpleNamespace(
            max_num_batched_tokens=most,
            max_num_scheduled_tokens=scheduled,
            long_prefill_token_threshold=chunk,
        ),
    )


def first_chunk(config):
    """Tokens of a long prompt that vLLM's own scheduler takes in its first step.

    Where vllm-ascend is loaded, it has wrapped the method for those who transfer keys.
    """
    from vllm.v1.core.sched.scheduler import Scheduler

    limits = config.scheduler_config
    most = limits.max_num_scheduled_tokens or limits.max_num_batched_tokens
    kept_back = config.speculative_config.max_num_new_slots_for_drafting
    offered = min(most, limits.max_num_batched_tokens - kept_back)
    scheduler = SimpleNamespace(
        cache_config=config.cache_config,
        scheduler_config=limits,
        vllm_config=SimpleNamespace(kv_transfer_config=None, model_config=GDN),
        max_num_scheduled_tokens=most,
        hash_block_size=BLOCK,
        use_eagle_block_drop=False,
        mamba_has_prefill_checkpoint_blocks=False,
        mamba_partial_cache_hit=False,
        mamba_fine_grained_prefix_cache=False,
    )
    chunk = limits.long_prefill_token_threshold
    offered = min(offered, chunk) if chunk else offered
    return Scheduler._mamba_block_aligned_split(scheduler, LONG_PROMPT, offered)


def refusal_of(config, *, states_kept=True):
    """What is said of these limits, beside a group that hits do not read; None if nothing is."""
    from vllm.v1.kv_cache_interface import MambaSpec, UniformTypeKVCacheSpecs

    layer = MambaSpec(block_size=BLOCK, shapes=((4, 4),), dtypes=(torch.float32,))
    # Groups describe each of their layers.
    kept = UniformTypeKVCacheSpecs(block_size=BLOCK, kv_cache_specs={"a layer": layer})
    specs = [
        kept if states_kept else SimpleNamespace(block_size=BLOCK, prefix_cacheable=True),
        SimpleNamespace(block_size=16, prefix_cacheable=False),
    ]
    try:
        start_checks.refuse_steps_that_wait(config, specs)
    except ValueError as error:
        return str(error)
    return None


@hosts.only_on("vllm_ascend_0_30", "vLLM 0.23.0 refuses such steps itself")
@pytest.mark.parametrize("scheduled", [None, BLOCK])
@pytest.mark.parametrize("kept_back", [0, 1, 3])
@pytest.mark.parametrize("chunk", [0, BLOCK - 1, BLOCK, BLOCK + 1])
def test_steps_are_refused_in_which_vllm_would_take_nothing_of_a_long_prompt(
    kept_back, chunk, scheduled
):
    refused = 0
    for most in range(scheduled or BLOCK - 2, BLOCK + 5):
        config = asked_for(most, kept_back, chunk, scheduled)
        said = refusal_of(config)
        assert (said is not None) == (first_chunk(config) == 0)
        if said is None:
            continue
        refused += 1
        assert f"drafts keep {kept_back}: a long prompt would wait for ever" in said
        enough = most + int(said.partition("Raise it by ")[2].split()[0])
        assert first_chunk(asked_for(enough, kept_back, chunk, scheduled)) > 0
        assert first_chunk(asked_for(enough - 1, kept_back, chunk, scheduled)) == 0
    assert refused == (0 if chunk == BLOCK - 1 else kept_back)


@hosts.only_on("vllm_ascend_0_30", "vLLM 0.23.0 refuses such steps itself")
def test_such_steps_are_served_where_no_layer_keeps_states():
    waits = asked_for(BLOCK, 1, 0)
    assert refusal_of(waits)
    assert refusal_of(waits, states_kept=False) is None

# SPDX-License-Identifier: Apache-2.0
"""The simulated scheduler beside vLLM's own: who is computed in each step, and who is preempted.

vLLM's takes the same requests without a model: what a step gives is written down beforehand.
"""

from __future__ import annotations

from collections.abc import Sequence as Many

import numpy as np
import pytest

from mkv_ascend.advice.cluster.scheduling import Limits, Scheduler, Sequence
from tests.support.tiny_models import model_directory

LONGEST = 1024
"""As the tiny model's configuration allows; no request comes near."""

Seen = list[tuple[dict[str, int], set[str]]]
"""Of each step: tokens by request, and who lost its blocks."""


def vllms_scheduler(limits: Limits):
    """vLLM's scheduler over one group of layers; drafts come from outside (ngram)."""
    import torch
    from vllm.config import (
        CacheConfig,
        ModelConfig,
        ParallelConfig,
        SchedulerConfig,
        SpeculativeConfig,
        VllmConfig,
    )
    from vllm.v1.core.sched.scheduler import Scheduler as VllmScheduler
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
    from vllm.v1.structured_output import StructuredOutputManager

    model = ModelConfig(model=str(model_directory("llama_target")), max_model_len=LONGEST)
    scheduling = SchedulerConfig(
        max_num_seqs=limits.max_num_seqs,
        max_num_batched_tokens=limits.max_num_batched_tokens,
        max_model_len=LONGEST,
        enable_chunked_prefill=True,
        is_encoder_decoder=False,
        async_scheduling=False,
    )
    speculation = None
    if limits.draft_tokens:
        speculation = SpeculativeConfig(
            method="ngram",
            num_speculative_tokens=limits.draft_tokens,
            prompt_lookup_max=2,
            target_model_config=model,
            target_parallel_config=ParallelConfig(),
        )
    cache = CacheConfig(block_size=limits.block_size, enable_prefix_caching=False)
    cache.num_gpu_blocks = limits.num_blocks + 1
    config = VllmConfig(
        model_config=model,
        scheduler_config=scheduling,
        cache_config=cache,
        speculative_config=speculation,
    )
    spec = FullAttentionSpec(
        block_size=limits.block_size, num_kv_heads=1, head_size=64, dtype=torch.float32
    )
    # One block is vLLM's own null block.
    groups = KVCacheConfig(limits.num_blocks + 1, [], [KVCacheGroupSpec(["layer"], spec)])
    return VllmScheduler(
        vllm_config=config,
        kv_cache_config=groups,
        structured_output_manager=StructuredOutputManager(config),
        block_size=limits.block_size,
    )


def of_vllm(limits: Limits, requests: Many[tuple[int, int]], yields: list[list[int]]) -> Seen:
    """Steps of vLLM's scheduler until all requests ended."""
    from vllm.sampling_params import SamplingParams
    from vllm.v1.outputs import DraftTokenIds, ModelRunnerOutput
    from vllm.v1.request import Request

    scheduler = vllms_scheduler(limits)
    for index, (prompt, output) in enumerate(requests):
        parameters = SamplingParams(max_tokens=output, ignore_eos=True)
        parameters.update_from_generation_config({}, None)
        scheduler.add_request(Request(str(index), [1] * prompt, parameters, pooling_params=None))
    verified = [0] * len(requests)
    seen: Seen = []
    while scheduler.has_unfinished_requests():
        step = scheduler.schedule()
        seen.append((dict(step.num_scheduled_tokens), set(step.preempted_req_ids or ())))
        names = list(step.num_scheduled_tokens)
        sampled = []
        for name in names:
            request, index = scheduler.requests[name], int(name)
            drafts = step.scheduled_spec_decode_tokens.get(name, ())
            if request.num_computed_tokens < request.num_tokens + len(drafts):
                sampled.append([])  # a part of a prompt
            elif drafts:
                given = list(np.diff([0, *yields[index]]))[verified[index]]
                verified[index] += 1
                sampled.append([1] * int(given))
            else:
                sampled.append([1])
        output = ModelRunnerOutput(
            req_ids=names,
            req_id_to_index={name: place for place, name in enumerate(names)},
            sampled_token_ids=sampled,
        )
        scheduler.update_from_output(step, output)
        if limits.draft_tokens:
            drafted = [name for name, given in zip(names, sampled, strict=True) if given]
            tokens = [[2] * limits.draft_tokens for _ in drafted]
            scheduler.update_draft_token_ids(DraftTokenIds(drafted, tokens))
    return seen


def of_ours(limits: Limits, requests: Many[tuple[int, int]], yields: list[list[int]]) -> Seen:
    """Steps of the simulated one."""
    scheduler = Scheduler(limits)
    names = {}
    for index, (prompt, output) in enumerate(requests):
        drawn = yields[index] if limits.draft_tokens else None
        sequence = Sequence(prompt, output, drawn)
        names[id(sequence)] = str(index), sequence
        scheduler.add(sequence)
    seen: Seen = []
    while scheduler.running or scheduler.waiting:
        step = scheduler.schedule()
        tokens = {names[id(one)][0]: count for one, count in step.scheduled}
        seen.append((tokens, {names[id(one)][0] for one in step.preempted}))
        scheduler.complete(step)
    return seen


@pytest.mark.parametrize("draft_tokens", [0, 3])
@pytest.mark.parametrize(("blocks", "budget"), [(300, 40), (40, 2048), (14, 256)])
def test_steps_are_those_of_vllms_scheduler(blocks, budget, draft_tokens):
    random = np.random.default_rng([blocks, budget, draft_tokens])
    limits = Limits(6, budget, blocks, block_size=16, draft_tokens=draft_tokens)
    most = (blocks - 2) * 16
    requests = [
        (prompt, min(output, most - prompt))
        for prompt, output in zip(
            random.integers(1, 120, 40).tolist(), random.integers(1, 90, 40).tolist(), strict=True
        )
    ]
    yields = [np.cumsum(random.integers(1, 5, 100)).tolist() for _ in requests]
    ours = of_ours(limits, requests, yields)
    assert ours == of_vllm(limits, requests, yields)
    assert any(preempted for _, preempted in ours) == (blocks < 300)

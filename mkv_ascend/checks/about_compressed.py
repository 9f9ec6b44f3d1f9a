# SPDX-License-Identifier: Apache-2.0
"""What cannot be of DeepSeek-V4 where vllm-ascend arranges its caches itself."""

from __future__ import annotations

from collections.abc import Iterator

from mkv_ascend import host_versions
from mkv_ascend.checks.facts import ServeFacts
from mkv_ascend.checks.refusal import Refusal

__all__ = ["CHECKS"]


def executor(facts: ServeFacts) -> Iterator[Refusal]:
    """A worker in the engine core's own process, where a host cannot serve DeepSeek-V4 there.

    vLLM 0.30.0 sets the block size of its configuration to the least of all groups, 2 to 8 tokens
    here. vllm-ascend 0.30.0rc2 then asks the layers again, by that size, of which it has no caches
    (KeyError in ``DSV4_BLOCK_SIZES``). A worker's own process has its own configuration.
    """
    if facts.rules is None or facts.rules.compressed_in_one_process:
        return
    asked = facts.engine.get("distributed_executor_backend")
    ranks = facts.tensor_parallel * facts.whole("pipeline_parallel_size", 1)
    ranks *= facts.whole("prefill_context_parallel_size", 1)
    if facts.target.is_compressed and (asked == "uni" or (asked is None and ranks == 1)):
        yield Refusal(
            "executor",
            f"{facts.target.name} on one rank, whose worker vLLM runs in the engine core's own "
            f"process: {host_versions.vllm_ascend()} asks the layers of "
            f"{facts.target.model_type} for caches there by a block size that it has none of",
            "a worker in a process of its own, or several ranks",
            "add --distributed-executor-backend mp",
        )


def drafts_with_transfer(facts: ServeFacts) -> Iterator[Refusal]:
    """A draft model and a KV connector, which leaves the caches to vllm-ascend.

    Its own arrangement of DeepSeek-V4's caches takes no layers of another model.
    """
    if facts.rules is None or facts.rules.plans_compressed or not facts.target.is_compressed:
        return
    speculation, draft = facts.speculation, facts.draft
    if speculation is None or draft is None or speculation.method != "draft_model":
        return
    for option in ("kv_transfer_config", "kv_offloading_size"):
        if facts.engine.get(option) is not None:
            words = f"--{option.replace('_', '-')}"
            yield Refusal(
                "draft-caches",
                f"the draft {draft.name} beside {facts.target.model_type} with {words}, with which "
                f"{host_versions.vllm_ascend()} arranges the caches itself, without layers of "
                "other models",
                "the target's own MTP layer (method mtp), ngram, or no speculation with it",
                f"choose one of these, or leave {words} out",
            )


CHECKS = (executor, drafts_with_transfer)

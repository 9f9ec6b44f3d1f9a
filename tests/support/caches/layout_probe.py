# SPDX-License-Identifier: Apache-2.0
"""Starts an engine and prints, as JSON, what its KV caches are: groups, tensors, and aliases.

vllm-ascend's own two methods then make the caches again for the same groups, to compare.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import torch


def describe(tensor: torch.Tensor) -> list[Any]:
    return [list(tensor.shape), str(tensor.dtype), list(tensor.stride()), tensor.nbytes]


def stock(runner: Any) -> Any:
    """The caches as vllm-ascend's own methods make them, or the error that they raise."""
    from vllm_ascend.worker.model_runner_v1 import NPUModelRunner

    config = runner.kv_cache_config
    try:
        raw = NPUModelRunner._allocate_kv_cache_tensors(runner, config)
        return NPUModelRunner._reshape_kv_cache_tensors(runner, config, raw)
    except (AssertionError, RuntimeError, ValueError) as error:
        return f"{type(error).__name__}: {error}"


def main() -> None:
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    from vllm import LLM

    from tests.support.caches.planned_runner import aliases

    llm = LLM(**json.loads(sys.argv[1]))
    core = llm.llm_engine.engine_core.engine_core
    runner = core.model_executor.driver_worker.worker.model_runner
    config = runner.kv_cache_config
    layers = runner.compilation_config.static_forward_context
    names = [name for group in config.kv_cache_groups for name in group.layer_names]
    caches = {name: layers[name].kv_cache for name in names}
    for part in (part for cache in caches.values() for part in cache):
        part.zero_()
    own = {name: [describe(part) for part in cache] for name, cache in caches.items()}
    theirs = stock(runner)
    if not isinstance(theirs, str):
        theirs = {name: [describe(part) for part in cache] for name, cache in theirs.items()}
    result = {
        "planned": runner.cache_plan is not None,
        "groups": [group.layer_names for group in config.kv_cache_groups],
        "num_blocks": config.num_blocks,
        "counted_bytes": sum(tensor.size for tensor in config.kv_cache_tensors),
        "plan_bytes": runner.cache_plan.total_bytes if runner.cache_plan else None,
        "caches": own,
        "stock_caches": theirs,
        "aliases": aliases(caches, config.num_blocks, getattr(config, "page_shapes", {})),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()

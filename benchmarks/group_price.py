# SPDX-License-Identifier: Apache-2.0
"""What one more KV group costs the host in every step: the price by which groups are chosen.

    mkv-ascend emulate -- python -m benchmarks.group_price [--json]

Runs what vLLM and vllm-ascend do on the host for every group in a decode step: the scheduler's
``allocate_slots`` for each request, and the worker's block tables and slots. The only work of a
device in it is copies, which the emulated NPU makes in host memory. The slope over the number of
groups is the price, in microseconds of processor time. Builders of metadata and launches of copies
are not counted, so it is a lower limit.
"""

from __future__ import annotations

import argparse
import json
import time
from types import SimpleNamespace
from typing import Any

import numpy as np

REQUESTS = 32
TOKENS = 4_096
STEPS = 24
GROUPS = (1, 2, 4, 8, 16, 32)
BLOCK = 128


def layer_groups(groups: int, block_size: int, window: int) -> list[Any]:
    """So many groups of one layer: the first attends to all tokens, the others to ``window``."""
    import torch
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheGroupSpec, SlidingWindowSpec

    shape: dict[str, Any] = {
        "block_size": block_size,
        "num_kv_heads": 8,
        "head_size": 128,
        "dtype": torch.bfloat16,
    }
    specs = FullAttentionSpec(**shape), SlidingWindowSpec(**shape, sliding_window=window)
    return [KVCacheGroupSpec([f"layer.{i}"], specs[i > 0]) for i in range(groups)]


def _config(groups: int) -> Any:
    from vllm.v1.kv_cache_interface import KVCacheConfig

    blocks = REQUESTS * (TOKENS // BLOCK + 2) * groups
    return KVCacheConfig(blocks, [], layer_groups(groups, BLOCK, 1024))


def scheduler_microseconds(groups: int) -> float:
    """Processor time of one step's ``allocate_slots`` for all requests."""
    from vllm.sampling_params import SamplingParams
    from vllm.v1.core.kv_cache_manager import KVCacheManager
    from vllm.v1.request import Request

    manager = KVCacheManager(_config(groups), 2 * TOKENS, BLOCK, BLOCK, enable_caching=False)
    parameters = SamplingParams(max_tokens=TOKENS)
    requests = [Request(str(i), [0] * TOKENS, parameters, None) for i in range(REQUESTS)]
    for request in requests:
        manager.allocate_slots(request, TOKENS)
        request.num_computed_tokens = TOKENS
    start = time.process_time()
    for _ in range(STEPS):
        for request in requests:
            assert manager.allocate_slots(request, 1) is not None
            request.num_computed_tokens += 1
    return (time.process_time() - start) / STEPS * 1e6


def worker_microseconds(groups: int) -> float:
    """Processor time of one step's slots and block tables."""
    import torch
    import vllm_ascend.ops  # noqa: F401  First of vllm_ascend, or its imports go in a circle.
    from vllm_ascend.worker import block_table

    alone = SimpleNamespace(world_size=1, rank_in_group=0)
    for name in ("get_pcp_group", "get_dcp_group"):
        setattr(block_table, name, lambda: alone)
    tables = block_table.MultiGroupBlockTable(
        REQUESTS, 2 * TOKENS, REQUESTS, False, torch.device("cpu"), [BLOCK] * groups,
        kernel_sizes=[[BLOCK]] * groups,
    )  # fmt: skip
    blocks = list(range(1, TOKENS // BLOCK + 1))
    for row in range(REQUESTS):
        tables.add_row((blocks,) * groups, row)
    rows, positions = np.arange(REQUESTS), np.full(REQUESTS, TOKENS - 1)
    start = time.process_time()
    for _ in range(STEPS):
        tables.commit_block_table(REQUESTS)
        tables.compute_slot_mapping_draft(rows, positions)
    return (time.process_time() - start) / STEPS * 1e6


def run() -> dict[str, Any]:
    """Microseconds of one step by part and number of groups, and of each further group."""
    parts: dict[str, dict[int, float]] = {}
    for part, measure in (("scheduler", scheduler_microseconds), ("worker", worker_microseconds)):
        measure(2)
        parts[part] = {count: min(measure(count) for _ in range(3)) for count in GROUPS}
    slopes = {
        part: float(np.polyfit(list(found), list(found.values()), 1)[0])
        for part, found in parts.items()
    }
    return {
        "requests": REQUESTS,
        "microseconds": parts,
        "each_group": {**slopes, "sum": sum(slopes.values())},
    }


def main() -> None:
    """Print the figures, with ``--json`` as JSON."""
    parser = argparse.ArgumentParser(prog="benchmarks.group_price", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print JSON")
    arguments = parser.parse_args()
    result = run()
    if arguments.json:
        print(json.dumps(result, indent=2))
        return
    print(f"Microseconds of the host in a decode step of {REQUESTS} requests")
    print("groups     " + "".join(f"{count:>9}" for count in GROUPS) + "   each further group")
    for part, found in result["microseconds"].items():
        row = "".join(f"{found[count]:>9.0f}" for count in GROUPS)
        print(f"{part:<11}{row}{result['each_group'][part]:>12.1f}")


if __name__ == "__main__":
    main()

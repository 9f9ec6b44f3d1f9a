# SPDX-License-Identifier: Apache-2.0
"""Starts an engine with a connector that records, and prints as JSON what it was given.

Bytes are addressed as connectors do, by the address of a tensor and the bytes of a block. The same
caches as vllm-ascend's own two methods make them are described beside, to compare.
"""

import json
import os
import sys

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"

import torch
from vllm import LLM

ALIGNMENT = 2 << 20


def describe(cache):
    """What connectors read of the tensors of one layer."""
    starts = [part.untyped_storage().data_ptr() for part in cache]
    return {
        "container": type(cache).__name__,
        "tensors": [[list(part.shape), str(part.dtype), list(part.stride())] for part in cache],
        "contiguous": [part.is_contiguous() for part in cache],
        "misaligned": [part.data_ptr() % ALIGNMENT for part in cache],
        "storages": len(set(starts)),
        "storage_bytes": [part.untyped_storage().nbytes() for part in cache],
    }


def by_address(tensor, num_blocks):
    """(num_blocks, bytes of a block) from the tensor's address on."""
    page = tensor.shape[0] // num_blocks * tensor.stride(0) * tensor.element_size()
    storage = tensor.untyped_storage()
    start = tensor.data_ptr() - storage.data_ptr()
    whole = torch.empty(0, dtype=torch.int8, device=tensor.device)
    return whole.set_(storage, start, (num_blocks * page,)).view(num_blocks, page)


def wrong_blocks(caches, num_blocks):
    """(layer, block) where the bytes by address are not exactly the block's."""
    wrong = []
    for cache in caches.values():
        for part in cache:
            part.zero_()
    for name, cache in caches.items():
        for part in cache:
            for block in (0, num_blocks // 2, num_blocks - 1):
                by_address(part, num_blocks)[block].fill_(1)
                filled = part.view(num_blocks, -1).view(torch.int8).cpu().ne(0)
                if not filled[block].all() or filled.any(dim=1).sum() != 1:
                    wrong.append([name, block])
                part.zero_()
    return wrong


def main():
    llm = LLM(**json.loads(sys.argv[1]))
    from tests.emulated.kv_transfer.recording_connector import REGISTERED
    from tests.support.caches.layout_probe import stock

    core = llm.llm_engine.engine_core.engine_core
    runner = core.model_executor.driver_worker.worker.model_runner
    (caches,) = REGISTERED
    theirs = stock(runner)
    config = runner.kv_cache_config
    result = {
        "planned": runner.cache_plan is not None,
        "groups": len(config.kv_cache_groups),
        "num_blocks": config.num_blocks,
        "registered": {name: describe(cache) for name, cache in caches.items()},
        "stock": theirs
        if isinstance(theirs, str)
        else {name: describe(cache) for name, cache in theirs.items()},
        "held_bytes": sum(
            {
                part.untyped_storage().data_ptr(): part.untyped_storage().nbytes()
                for cache in caches.values()
                for part in cache
            }.values()
        ),
        "wrong_blocks": wrong_blocks(caches, config.num_blocks),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()

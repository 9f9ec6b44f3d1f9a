# SPDX-License-Identifier: Apache-2.0
"""Time of vLLM's KV cache manager over pages that groups share, beside its own block pool.

    mkv-ascend emulate -- python -m benchmarks.page_pool [--json]

One run admits requests, takes a decode step at a time for all of them, and frees them: what
``schedule()`` asks of the manager. Each figure is the median of the ratios of interleaved pairs of
runs, so it says nothing of a processor. Twice is asked: with as many groups, and three groups of
pages beside nine of vLLM's, as today's plan splits hybrid pairs.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import statistics
import sys
import time
from collections.abc import Iterator
from typing import Any

from benchmarks.group_price import layer_groups
from mkv_ascend.layout.component import ONE_BLOCK, PageShape

BLOCK = 16
TOKENS = 512
STEPS = 64
PAIRS = 7
REQUESTS = (1, 16, 64, 256)
GROUPS = (1, 2, 3, 4)
SHARED, SPLIT = 3, 9
PER_PAGE = 4
"""Blocks of each group but the first in a page; of a group alone, of that one."""
PARTS = ("admit", "step", "free")


def _manager(groups: int, requests: int, *, is_shared: bool) -> Any:
    from vllm.v1.core.kv_cache_manager import KVCacheManager
    from vllm.v1.kv_cache_interface import KVCacheConfig

    from mkv_ascend.adapters.common.kv_cache.page_blocks import share_pages
    from mkv_ascend.adapters.common.kv_cache.page_shapes import with_page_shapes

    specs = layer_groups(groups, BLOCK, window=256)
    blocks = (requests + 1) * ((TOKENS + STEPS) // BLOCK + 2) * groups
    config = KVCacheConfig(blocks, [], specs)
    if is_shared:
        many = PageShape(PER_PAGE)
        shapes = (ONE_BLOCK if groups > 1 else many, *[many] * (groups - 1))
        config = with_page_shapes(config, shapes)
    manager = KVCacheManager(config, 2 * TOKENS, BLOCK, BLOCK, enable_caching=True)
    if is_shared:
        share_pages(manager)
    return manager


def _requests(count: int, first: int = 0) -> list[Any]:
    from vllm.sampling_params import SamplingParams
    from vllm.utils.hashing import sha256
    from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
    from vllm.v1.request import Request

    init_none_hash(sha256)
    hasher = get_request_block_hasher(BLOCK, sha256)
    parameters = SamplingParams(max_tokens=TOKENS)
    return [
        Request(str(number), [number] * TOKENS, parameters, None, block_hasher=hasher)
        for number in range(first, first + count)
    ]


def seconds(groups: int, requests: int, *, is_shared: bool) -> tuple[float, ...]:
    """Processor time of each of ``PARTS``."""
    manager = _manager(groups, requests, is_shared=is_shared)
    for request in _requests(requests, first=requests):  # Pages that nobody had are not the rule.
        assert manager.allocate_slots(request, TOKENS) is not None
        manager.free(request)
    running = _requests(requests)
    gc.collect()
    times = [time.process_time()]
    for request in running:
        found, hit = manager.get_computed_blocks(request)[:2]
        assert manager.allocate_slots(request, TOKENS - hit, hit, found) is not None
        request.num_computed_tokens = TOKENS
    times.append(time.process_time())
    for _ in range(STEPS):
        for request in running:
            assert manager.allocate_slots(request, 1) is not None
            request.num_computed_tokens += 1
        manager.take_new_block_ids()
    times.append(time.process_time())
    for request in running:
        manager.free(request)
    times.append(time.process_time())
    return tuple(end - start for start, end in itertools.pairwise(times))


def ratios(requests: int, shared: int, stock: int) -> dict[str, float]:
    """Median over interleaved pairs: time with pages by time with vLLM's pool, of each part."""
    pairs = [
        (
            seconds(shared, requests, is_shared=True),
            seconds(stock, requests, is_shared=False),
        )
        for _ in range(PAIRS)
    ]
    found = {
        part: statistics.median(ours[index] / max(theirs[index], 1e-9) for ours, theirs in pairs)
        for index, part in enumerate(PARTS)
    }
    return found | {"all": statistics.median(sum(ours) / sum(theirs) for ours, theirs in pairs)}


def rows() -> Iterator[dict[str, Any]]:
    """One row for each number of groups and requests."""
    cases = [(groups, groups) for groups in GROUPS] + [(SHARED, SPLIT)]
    for shared, stock in cases:
        for requests in REQUESTS:
            print(f"{shared} and {stock} groups, {requests} requests", file=sys.stderr)
            found = ratios(requests, shared, stock)
            yield {"groups": shared, "groups_of_stock": stock, "requests": requests, **found}


def main() -> None:
    """Print the ratios, with ``--json`` as JSON."""
    parser = argparse.ArgumentParser(prog="benchmarks.page_pool", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print JSON")
    arguments = parser.parse_args()
    found = list(rows())
    if arguments.json:
        print(json.dumps(found, indent=2))
        return
    print("groups  of stock  requests" + "".join(f"{part:>8}" for part in (*PARTS, "all")))
    for row in found:
        numbers = "".join(f"{row[part]:>8.2f}" for part in (*PARTS, "all"))
        print(f"{row['groups']:>6}{row['groups_of_stock']:>10}{row['requests']:>10}{numbers}")


if __name__ == "__main__":
    main()

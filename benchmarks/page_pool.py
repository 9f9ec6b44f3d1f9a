# SPDX-License-Identifier: Apache-2.0
"""Time of vLLM's scheduler over pages that KV groups share, beside its own block pool.

    mkv-ascend emulate -- python -m benchmarks.page_pool [--json]

One run takes requests through vLLM's scheduler, in memory all of which was used before: it admits
them, takes a decode step at a time for all of them, and learns what they sampled, until they are
freed. ``schedule()`` and ``update_from_output()`` are timed. Each figure is the median of the
ratios of interleaved pairs of runs, so it says nothing of a processor. Twice is asked: with as many
groups, and three groups of pages beside nine of vLLM's, as equal groups split hybrid pairs. One
group alone is not asked for: its page is a block, and its pool vLLM's own.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

from benchmarks.group_price import layer_groups
from mkv_ascend.layout.component import ONE_BLOCK, PageShape

BLOCK = 128
"""Tokens, as vllm-ascend's operators take them."""
TOKENS = 2048
STEPS = 129
"""Each request fills a block and begins one."""
WINDOW = 1024
PAIRS = 5
REQUESTS = (1, 16, 64, 256)
GROUPS = (2, 3, 4)
SHARED, SPLIT = 3, 9
PER_PAGE = 4
"""Blocks of each group but the first in a page."""
PARTS = ("admit", "step")
"""``step``: until all are freed."""


def _scheduler(groups: int, requests: int, *, is_shared: bool) -> Any:
    from vllm.v1.kv_cache_interface import KVCacheConfig

    from mkv_ascend.adapters.common.kv_cache.page_blocks import share_pages
    from mkv_ascend.adapters.common.kv_cache.page_shapes import with_page_shapes
    from tests.support.bookkeeping import plans

    blocks = 1 + requests * ((TOKENS + STEPS) // BLOCK + 2) * groups
    caches = KVCacheConfig(blocks, [], layer_groups(groups, BLOCK, WINDOW))
    if is_shared:
        shapes = (ONE_BLOCK, *[PageShape(PER_PAGE)] * (groups - 1))
        caches = with_page_shapes(caches, shapes)
    config = plans.config_of(plans.PAIRS["one group"], False, None)
    config.speculative_config = None
    config.num_lookahead_tokens = config.num_speculative_tokens = 0
    vars(config.scheduler_config).update(
        max_num_seqs=requests, max_num_batched_tokens=requests * TOKENS
    )
    config.model_config.max_model_len = 2 * TOKENS
    vars(config.cache_config).update(block_size=BLOCK, num_gpu_blocks=blocks)
    made = plans.scheduler_over(caches, config, BLOCK, BLOCK)
    if is_shared:
        share_pages(made.kv_cache_manager)
    return made


def _requests(count: int, first: int, max_tokens: int) -> list[Any]:
    from vllm.sampling_params import SamplingParams
    from vllm.utils.hashing import sha256
    from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
    from vllm.v1.request import Request

    init_none_hash(sha256)
    hasher = get_request_block_hasher(BLOCK, sha256)
    parameters = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
    return [
        Request(str(number), [number] * TOKENS, parameters, None, block_hasher=hasher)
        for number in range(first, first + count)
    ]


def _finish(scheduler: Any, requests: Sequence[Any]) -> tuple[float, ...]:
    """Take them from admission to their end; processor time of each of ``PARTS``."""
    from vllm.v1.outputs import ModelRunnerOutput

    times = [0.0, 0.0]
    for request in requests:
        scheduler.add_request(request)
    while scheduler.has_unfinished_requests():
        part = 1 if scheduler.running else 0
        start = time.process_time()
        output = scheduler.schedule()
        times[part] += time.process_time() - start
        names = list(output.num_scheduled_tokens)
        assert len(names) == len(requests)
        places = {name: index for index, name in enumerate(names)}
        sampled = ModelRunnerOutput(names, places, [[1]] * len(names))
        start = time.process_time()
        scheduler.update_from_output(output, sampled)
        times[1] += time.process_time() - start
    return tuple(times)


def seconds(groups: int, requests: int, *, is_shared: bool) -> tuple[float, ...]:
    """Processor time of each of ``PARTS``."""
    scheduler = _scheduler(groups, requests, is_shared=is_shared)
    earlier = 2 * groups  # Times as many requests use all of the memory.
    for wave in range(earlier):
        _finish(scheduler, _requests(requests, wave * requests, 2))
    running = _requests(requests, earlier * requests, STEPS)
    gc.collect()
    return _finish(scheduler, running)


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

# SPDX-License-Identifier: Apache-2.0
"""What takes the place of functions of ``vllm.v1.core.kv_cache_utils`` in the engine core.

Groups are our own where target and draft need several, or where vLLM cannot group the layers at
all. Otherwise they are vLLM's. Either way blocks, memory and concurrency are counted from the plan.
For layers that are not planned each function calls the original, its first argument. Which of them
a host needs, its adapter says (``kv_cache/engine_core.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from vllm.v1.core import kv_cache_utils
from vllm.v1.kv_cache_interface import MambaSpec

from mkv_ascend.adapters.common.kv_cache import kv_groups, planned_groups
from mkv_ascend.adapters.common.kv_cache.layer_facts import tied_facts
from mkv_ascend.adapters.common.kv_cache.planned_caches import blocks_of_request
from mkv_ascend.adapters.patching import expect
from mkv_ascend.layout.component import counted_in
from mkv_ascend.layout.grouping import MIB, NULL_BLOCKS, AdmissionError, never_held
from mkv_ascend.layout.planning import ServingPlan, plan
from mkv_ascend.layout.pooling import page_bytes

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheGroupSpec

    from mkv_ascend.layout.component import PageShape

    Groups = Sequence[KVCacheGroupSpec]


def configs_of_workers(
    original: Any, config: VllmConfig, specs: Any, available_memory: Sequence[int]
) -> Any:
    """vLLM's configurations, planned for the memory there is; for ``get_kv_cache_configs``.

    Stages of a pipeline have layers of their own, so they hold as much in all.
    """
    memory = min(available_memory, default=0) * config.parallel_config.pipeline_parallel_size
    with kv_groups.planned_for(memory if memory > 0 else None):
        return original(config, specs, available_memory)


def our_groups(
    original: Any,
    config: VllmConfig,
    specs: dict[str, Any],
    why_not_planned: Callable[[VllmConfig, Iterable[Any]], str | None],
) -> Any:
    """Our groups, or vLLM's, with the facts of every layer; for ``get_kv_cache_groups``.

    Args:
        why_not_planned: what leaves the caches of these specs to the host; None if nothing does.
    """
    facts = {name: tied_facts(spec) for name, spec in specs.items()}
    if why_not_planned(config, specs.values()) is not None or None in facts.values():
        return original(config, specs)
    planned_groups.require_layouts(specs)
    if planned_groups.need_ours(config, specs):
        return kv_groups.merge_groups(config, specs)
    may_be_ours = planned_groups.may_be_ours(config, specs)
    groups = planned_groups.with_facts(original(config, specs), facts)
    return kv_groups.better_groups(config, specs, groups) if may_be_ours else groups


def pool_bytes_per_block(original: Any, groups: Groups) -> int:
    """Bytes of one page over all pools; for ``_pool_bytes_per_block``."""
    if not planned_groups.are_planned(groups):
        return int(original(groups))
    # vLLM does not pass its configuration here; these bytes do not depend on it.
    specs = [list(kv_groups.specs_by_layer(group).values()) for group in groups]
    shapes = list(map(kv_groups.shape_of_group, groups))
    return page_bytes([list(map(kv_groups.layout_of_spec, own)) for own in specs], shapes)


def plan_for(config: VllmConfig, groups: Groups, available_memory: int) -> tuple[ServingPlan, int]:
    """The plan of these planned groups, and the number of blocks in ``available_memory`` bytes."""
    planned = plan(kv_groups.given_inputs(config, groups))
    blocks = kv_cache_utils.may_override_num_blocks(config, planned.num_blocks(available_memory))
    return planned, int(blocks)


def pages_of_one_request(config: VllmConfig, groups: Groups) -> int:
    """Pages of all groups that vLLM admits a request of ``max_model_len`` with."""
    return sum(shape.pages(blocks) for shape, blocks in _request_blocks(config, groups))


def requests_at_once(config: VllmConfig, kv_cache_config: KVCacheConfig) -> float:
    """Requests of ``max_model_len`` that fit together: many of them fill each other's pages."""
    asked = _request_blocks(config, kv_cache_config.kv_cache_groups)
    share = sum(shape.share(blocks) for shape, blocks in asked)
    return kv_cache_config.num_blocks / share


def _request_blocks(config: VllmConfig, groups: Groups) -> Iterator[tuple[PageShape, int]]:
    """Of each group: the shape of its pages, and the blocks of a request of ``max_model_len``."""
    for group in groups:
        yield kv_groups.shape_of_group(group), blocks_of_request(group.kv_cache_spec, config)


def blocks_asked_for(config: VllmConfig, groups: Groups) -> int:
    """Blocks that must be free beside those of a request, though it never takes them."""
    specs = (kv_groups.specs_by_layer(group).values() for group in groups)
    states = sum(isinstance(next(iter(own), None), MambaSpec) for own in specs)
    return states * kv_groups.asked_beside_states(config)


def alignment_bytes(config: VllmConfig, groups: Groups) -> int:
    """Bytes beside the blocks; 0 if the number of blocks is fixed by an option."""
    fixed = config.cache_config.num_gpu_blocks_override is not None
    if fixed or config.kv_transfer_config is None:
        return 0
    return plan(kv_groups.given_inputs(config, groups)).plan.overhead_bytes


def check_memory(
    name: str,
    original: Any,
    available_memory: int,
    get_needed_memory: Any,
    max_model_len: int,
    estimate_max_model_len: Callable[[int], int],
) -> None:
    """Refuse memory that cannot hold one request; the scheduler would wait for blocks for ever.

    For ``_check_enough_kv_cache_memory``, with needed and available memory that both have vLLM's
    null block in them, or both not.

    Args:
        name: name of the patch.

    Raises:
        AdmissionError: the memory is too small; with the numbers and what to change.
        ValueError: vLLM's own error, for groups that are not planned here.
    """
    # vLLM binds configuration and groups to the function that counts the memory.
    expect(
        len(getattr(get_needed_memory, "args", ())) == 2,
        name,
        "the memory check is not given the groups with get_needed_memory",
    )
    config, groups = get_needed_memory.args
    if not planned_groups.are_planned(groups) or available_memory <= 0:
        original(available_memory, get_needed_memory, max_model_len, estimate_max_model_len)
        return
    block = kv_cache_utils._pool_bytes_per_block(groups)
    aligned = alignment_bytes(config, groups)
    asked_for = blocks_asked_for(config, groups)
    needed = -(-(get_needed_memory() - aligned) // block) + asked_for
    available = max(available_memory - aligned, 0) // block
    if needed <= available:
        return
    # Whether the host has taken the null block off both numbers before.
    apart = pages_of_one_request(config, groups) + NULL_BLOCKS + asked_for - needed
    longest = estimate_max_model_len(max(available_memory - asked_for * block, 0))
    raise AdmissionError(
        _too_small(config, groups, needed + apart, available + apart, max_model_len, longest)
    )


def _too_small(
    config: VllmConfig,
    groups: Groups,
    needed: int,
    available: int,
    max_model_len: int,
    longest: int,
) -> str:
    block = kv_cache_utils._pool_bytes_per_block(groups)
    counted = counted_in(map(kv_groups.shape_of_group, groups))
    asked_for = blocks_asked_for(config, groups)
    aligned = alignment_bytes(config, groups)
    memory = (available * block + aligned) / MIB
    possible = ["give the KV cache more memory (gpu_memory_utilization, kv_cache_memory_bytes)"]
    if longest:
        possible.insert(0, f"lower max_model_len to {longest} or less")
    if config.cache_config.num_gpu_blocks_override is not None:
        possible.append(f"raise num_gpu_blocks_override to {needed} or more")
    return (
        f"one request of {max_model_len} tokens needs {needed} {counted}s of {block} bytes "
        f"({needed * block / MIB:.1f} MiB, {never_held(asked_for, counted)}) in "
        f"{len(groups)} KV groups; there are {available} ({memory:.1f} MiB"
        f"{f' less {aligned / MIB:.0f} MiB that align caches for transfer' if aligned else ''}), "
        f"enough for {longest} tokens. Possible: {'; '.join(possible)}"
    )

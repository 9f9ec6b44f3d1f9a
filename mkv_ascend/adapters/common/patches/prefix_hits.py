# SPDX-License-Identifier: Apache-2.0
"""Blocks in the engine core: of a draft's recurrent states, and prefix hits of heads."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

from vllm.v1.core.single_type_kv_cache_manager import MambaManager
from vllm.v1.kv_cache_interface import KVCacheConfig, MambaSpec
from vllm.v1.kv_cache_spec_registry import KVCacheSpecRegistry

from mkv_ascend.adapters.patching import Patch, record

if TYPE_CHECKING:
    from vllm.config import VllmConfig


# Blocks of a draft's recurrent states beside prefix caching.
#
# A draft's state at the end of a prefix is kept nowhere; the draft reads a hit itself
# (``rebuilding_states.py``). So its recurrent groups do not limit the length of a hit, and their
# blocks are never cached. The scheduler identifies a group by its spec, and finds its manager by
# the spec's class. Here the spec is ours, and so is the manager, a class of each adapter. Workers
# keep the spec that the layers gave.


@dataclass(frozen=True)
class DraftRecurrentSpec(MambaSpec):
    """States of a draft for the scheduler: ``1 + num_speculative_blocks`` blocks of a request.

    ``block_size`` does not describe these blocks. It is a size that divides hits anyway, because
    hits are looked for in common multiples of all groups' blocks.
    """

    @property
    def prefix_cacheable(self) -> bool:
        """False, which leaves the group out of prefix hits where vLLM asks (0.30.0)."""
        return False


HITS = record(
    name="states of a draft beside prefix caching",
    target=(
        "vllm.v1.engine.core:resolve_kv_cache_block_sizes",
        "vllm.v1.worker.mamba_utils:get_mamba_groups",
        "vllm_ascend.worker.model_runner_v1:NPUModelRunner._update_states",
        "vllm_ascend.worker.model_runner_v1:NPUModelRunner.propose_draft_token_ids",
    ),
    reads=(
        "vllm.v1.engine.core:EngineCore._initialize_kv_caches",
        "vllm.v1.core.kv_cache_utils:resolve_kv_cache_block_sizes",
        "vllm_ascend.patch.platform.patch_kv_cache_utils:_ascend_resolve_kv_cache_block_sizes",
    ),
)


def missing_blocks(manager: MambaManager, request_id: str, *_: Any, **__: Any) -> int:
    """How many of a request's blocks it does not have; it has its own, from beginning to end."""
    held = len(manager.req_to_blocks.get(request_id, ()))
    return max(0, 1 + manager.num_speculative_blocks - held)


def allocate_all(manager: MambaManager, request_id: str, *_: Any, **__: Any) -> list[Any]:
    """Allocate all of a request's blocks at its beginning; returns new ones."""
    if not (missing := missing_blocks(manager, request_id)):
        return []
    blocks: list[Any] = manager.block_pool.get_new_blocks(missing)
    manager.req_to_blocks[request_id].extend(blocks)
    return blocks


def do_nothing(manager: MambaManager, *_: Any, **__: Any) -> None:
    """Cache, free and take no block: a state is one request's to its end, and changes in place."""


OF_A_DRAFTS_STATES = {
    "get_num_blocks_to_allocate": missing_blocks,
    "allocate_new_blocks": allocate_all,
    "cache_blocks": do_nothing,
    "remove_skipped_blocks": do_nothing,
}
"""What the manager of a draft's recurrent group does otherwise on every host."""


def block_sizes_beside(manager: type[MambaManager]) -> Patch:
    """Register the host's ``manager`` of a draft's states, and leave hits to the other groups."""
    made = Patch(HITS)

    @made.also(target="vllm.v1.engine.core:resolve_kv_cache_block_sizes")
    def sizes_of_others(original: Any, config: KVCacheConfig, vllm_config: Any) -> Any:
        """Block sizes for hits, of the groups that have a say; changes groups and options."""
        KVCacheSpecRegistry.register(DraftRecurrentSpec, manager, MambaSpec)
        cache = vllm_config.cache_config
        if cache.enable_prefix_caching:
            sizes = leave_hits_to_others(config)
            if sizes:
                # As the engine core has set it, of groups that have a say.
                cache.block_size = min(sizes)
        return original(config, vllm_config)

    return made


def leave_hits_to_others(config: KVCacheConfig) -> list[int]:
    """Give a draft's groups of states in the scheduler's ``config`` the spec from above.

    With prefix caching, states of the target are kept at the ends of blocks; those that are not
    are a draft's.

    Returns:
        Block sizes of the other groups; empty where nothing was changed.
    """
    groups = config.kv_cache_groups
    own = [group for group in groups if _keeps_no_prefix(group.kv_cache_spec)]
    others = [group.kv_cache_spec for group in groups if not _keeps_no_prefix(group.kv_cache_spec)]
    sizes = [spec.block_size for spec in others]
    if not own or not sizes:
        return []
    for group in own:
        spec = replace(group.kv_cache_spec, block_size=min(sizes))
        values = {field.name: getattr(spec, field.name) for field in fields(MambaSpec)}
        group.kv_cache_spec = DraftRecurrentSpec(**values)
    return sizes


def _keeps_no_prefix(spec: Any) -> bool:
    return isinstance(spec, MambaSpec) and spec.mamba_cache_mode == "none"


# Prefix hits of heads that lose no block: blocks are hashed with the token behind them.
#
# A head on hidden states makes its row of a position from the token after it. So the last row of
# a block depends on the first token of the next, which the block's hash does not tell, and vLLM
# drops the last block of every hit. With that token in the hash, a block that is found is right
# as it is.
#
# The hash of a block is there once the token behind it is known, which is never later than vLLM
# needs it: of a prompt at least one token is computed anyway.
#
# Each host has a record of its own for these functions.

ONE_MODULE = (None, 0, 1)
"""Numbers of a predictor's modules of which each row is made from one token ahead."""


def hash_one_token_ahead(
    original: Any, block_size: int, caching_hash_fn: Any
) -> Callable[[Any], Any]:
    """``get_request_block_hasher`` of blocks with the token behind each."""
    hash_blocks = original(block_size, caching_hash_fn)
    return lambda request: hash_blocks(_OneTokenAhead(request))


class _OneTokenAhead:
    """A request as the hasher sees it: a token shorter, and each block a token longer."""

    def __init__(self, request: Any) -> None:
        self._request = request
        self.num_tokens = request.num_tokens - 1
        self.all_token_ids = _OneMore(request.all_token_ids)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._request, name)


class _OneMore:
    """Token ids, of which a slice has one more at its end."""

    def __init__(self, tokens: Sequence[int]) -> None:
        self._tokens = tokens

    def __getitem__(self, part: slice) -> Sequence[int]:
        return self._tokens[part.start : part.stop + 1]


def make_without_drops(
    original: Any, manager: Any, *args: Any, **kwargs: Any
) -> Callable[[Any, int], None]:
    """``KVCacheManager.__init__`` without groups whose hits lose a block.

    Blocks are cached from when their hashes are there. Managers of vllm-ascend have methods of
    their own for that, so it is the coordinator that all go through which is asked for fewer.

    Returns:
        The ``cache_blocks`` that the manager's coordinator must have then.
    """
    bound = inspect.signature(original).bind(manager, *args, **kwargs)
    config = bound.arguments["kv_cache_config"]
    groups = [replace(group, is_eagle_group=False) for group in config.kv_cache_groups]
    bound.arguments["kv_cache_config"] = replace(config, kv_cache_groups=groups)
    bound.arguments["use_eagle"] = False
    original(*bound.args, **bound.kwargs)
    return _of_hashed_blocks(manager.coordinator.cache_blocks, bound.arguments["hash_block_size"])


def _of_hashed_blocks(cache_blocks: Any, block_size: int) -> Callable[[Any, int], None]:
    """``cache_blocks`` of a coordinator, of the blocks whose hashes are there."""

    def cache_hashed_blocks(request: Any, num_tokens: int) -> None:
        cache_blocks(request, min(num_tokens, len(request.block_hashes) * block_size))

    return cache_hashed_blocks


def tells_all(config: VllmConfig) -> bool:
    """Whether the token behind a block says all that a head's last rows are made from."""
    speculative = config.speculative_config
    if speculative is None or not speculative.use_eagle():
        return False
    predictor = getattr(speculative.draft_model_config.hf_config, "n_predict", None)
    events = config.kv_events_config
    others_read_hashes = config.kv_transfer_config is not None or (
        events is not None and events.enable_kv_cache_events
    )
    # What stands behind a placeholder of an image, its token does not tell.
    has_embeddings = (
        config.model_config.is_multimodal_model or config.model_config.enable_prompt_embeds
    )
    # States are kept at ends of blocks that vLLM chooses with the dropped block in mind.
    keeps_states = config.model_config.is_hybrid
    return not (others_read_hashes or has_embeddings or keeps_states) and predictor in ONE_MODULE

# SPDX-License-Identifier: Apache-2.0
"""Prefix hits of heads that lose no block: blocks are hashed with the token behind them.

A head on hidden states makes its row of a position from the token after it. So the last row of a
block depends on the first token of the next, which the block's hash does not tell, and vLLM drops
the last block of every hit. With that token in the hash, a block that is found is right as it is.

The hash of a block is there once the token behind it is known, which is never later than vLLM needs
it: of a prompt at least one token is computed anyway.

Each host has a record of its own for these functions.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vllm.config import VllmConfig

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

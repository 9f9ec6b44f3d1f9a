# SPDX-License-Identifier: Apache-2.0
"""Heads on hidden states compute the last block of a prefix hit again.

The last row of a block of such a draft is made from the token after the block, which may be another
request's. vLLM therefore ends a hit one block earlier. vllm-ascend 0.30.0rc2 takes the whole hit
where nothing fetches keys from elsewhere, because an earlier end costs models with states their
whole hit. Models without states pay one block, and their drafts are right again.
"""

from __future__ import annotations

from typing import Any

from vllm.v1.core.single_type_kv_cache_manager import MambaManager

from mkv_ascend.adapters.patching import patch


@patch(
    name="heads behind prefix hits",
    target="vllm_ascend.patch.platform.patch_kv_cache_coordinator:"
    "AscendHybridKVCacheCoordinator.__init__",
    reads=("vllm_ascend.patch.platform.patch_kv_cache_coordinator:_skips_eagle_block_drop",),
    writes=("skips_eagle_block_drop",),
    why="A head's row at the end of a hit is made from a token of the request that filled the "
    "block. It is read as it is: some draft tokens are not the draft's own.",
    until="vllm-ascend drops the last block of hits of heads beside attention alone, or hashes "
    "blocks with the token behind them (vLLM 0.33)",
    test="tests/emulated/drafting/test_prefix_hits_of_heads.py",
)
def end_hits_a_block_earlier(
    original: Any, coordinator: Any, kv_cache_config: Any, *args: Any, **kwargs: Any
) -> None:
    original(coordinator, kv_cache_config, *args, **kwargs)
    states = any(isinstance(one, MambaManager) for one in coordinator.single_type_managers)
    if getattr(kv_cache_config, "kv_transfer_config", None) is None and not states:
        coordinator.skips_eagle_block_drop = False

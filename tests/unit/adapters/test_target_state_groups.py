# SPDX-License-Identifier: Apache-2.0
"""Which groups of recurrent states vLLM moves from block to block, in the form of either host."""

from __future__ import annotations

from typing import Any

import torch
from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    MambaSpec,
)
from vllm.v1.worker import mamba_utils

from mkv_ascend.adapters.common.patches.recurrent import groups_that_move

(moving_groups,) = groups_that_move.functions.values()
ATTENTION = FullAttentionSpec(block_size=128, num_kv_heads=2, head_size=64, dtype=torch.bfloat16)


def states(mode: str, width: int = 8) -> MambaSpec:
    return MambaSpec(
        block_size=128, shapes=((4, width),), dtypes=(torch.float32,), mamba_cache_mode=mode
    )


def found(*specs: Any) -> dict[MambaSpec, list[int]]:
    """Spec -> places of its groups; vLLM 0.23.0 answers with one pair of both."""
    groups = [KVCacheGroupSpec([f"layer.{place}"], spec) for place, spec in enumerate(specs)]
    answer = moving_groups(mamba_utils.get_mamba_groups, KVCacheConfig(64, [], groups))
    return answer if isinstance(answer, dict) else {answer[1]: answer[0]}


def test_states_of_a_draft_are_left_out() -> None:
    target, draft = states("align"), states("none", width=16)
    assert found(draft, ATTENTION, target, draft, target) == {target: [2, 4]}


def test_a_stage_without_layers_has_nothing_to_copy() -> None:
    groups = [KVCacheGroupSpec(["layer"], ATTENTION), KVCacheGroupSpec([], states("align"))]
    answer = moving_groups(mamba_utils.get_mamba_groups, KVCacheConfig(64, [], groups))
    assert answer in ({states("align"): [1]}, ([1], states("align")))
    assert not groups[1].layer_names


def test_states_of_one_model_are_all_found() -> None:
    for mode in ("align", "none"):
        assert found(ATTENTION, states(mode), states(mode)) == {states(mode): [1, 2]}

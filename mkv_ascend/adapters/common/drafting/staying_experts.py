# SPDX-License-Identifier: Apache-2.0
"""Experts of a draft, which stay where they are while those of the target move.

vllm-ascend means to move the experts of every layer that a process makes, the draft's among them
(``VllmEplbAdaptor.register_layer``): each needs as many of them, of one size, as the target's
first layer, or the engine ends when it has started. Those of a map of experts are counted on from
the target's layers. And vLLM 0.23.0 tells a draft model of no ranks of experts
(``SpeculativeConfig.create_draft_parallel_config``): each rank has its share of every expert, and
the layers stop in their constructor.

The target's own drafting layers (method ``mtp``) are as its other ones. Their experts move.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from vllm_ascend.ascend_config import get_ascend_config
from vllm_ascend.eplb.adaptor.vllm_adaptor import VllmEplbAdaptor

from mkv_ascend.adapters.patching import replaced

if TYPE_CHECKING:
    from vllm.config import VllmConfig


@contextlib.contextmanager
def unmoved_experts(draft: VllmConfig) -> Iterator[None]:
    """Let layers that are made in the block keep their experts, unless they move with the target's.

    Args:
        draft: the configuration that the draft is made with.
    """
    ascend, speculative = get_ascend_config(), draft.speculative_config
    asked = ascend.eplb_config
    moves = asked.dynamic_eplb or asked.expert_map_path is not None
    if not moves or speculative is None or speculative.method == "mtp":
        yield
        return
    with (
        replaced(ascend, "eplb_config", type(asked)()),
        replaced(VllmEplbAdaptor, "_registered_moe_layers", []),
    ):
        yield

# SPDX-License-Identifier: Apache-2.0
"""A draft as vllm-ascend 0.30.0 runs it."""

from __future__ import annotations

import torch
from vllm.distributed import get_tp_group
from vllm_ascend import utils as ascend_utils
from vllm_ascend.ascend_forward_context import _EXTRA_CTX, MoECommType
from vllm_ascend.spec_decode.utils import compact_mtp_topk_indices

from mkv_ascend.adapters.common.drafting.draft import AscendDraft
from mkv_ascend.drafting.draft import HiddenStates


def send_tokens_to_experts() -> None:
    """Name the way of tokens to experts in the current forward context, if it names none.

    vllm-ascend asks the target's configuration how tokens reach their experts: in no way if the
    target has none. Without expert parallelism, experts of either model have one way.
    """
    if _EXTRA_CTX.moe_comm_type is None:
        _EXTRA_CTX.moe_comm_type = MoECommType.ALLGATHER


class Draft(AscendDraft):
    """``AscendDraft``; tells layers with experts how to send their tokens."""

    def forward(self, rows: int, positions: torch.Tensor | None = None) -> HiddenStates:
        """See ``Draft``."""
        send_tokens_to_experts()
        return super().forward(rows, positions)

    def feed_back(
        self, tokens: torch.Tensor, hidden: torch.Tensor, rows: torch.Tensor | slice
    ) -> None:
        """See ``Draft``; later passes reuse the keys that the first pass chose for these rows."""
        super().feed_back(tokens, hidden, rows)
        if self._proposer._share_mtp_indices and isinstance(rows, torch.Tensor):
            inner = getattr(self._proposer.model, "model", None)
            if hasattr(inner, "compact_topk_indices"):
                compact_mtp_topk_indices(
                    inner,
                    rows,
                    hidden.shape[0],
                    tp_group=get_tp_group() if ascend_utils.enable_dsa_cp() else None,
                    lim_topk_compactors=self._proposer._lim_topk_compactors,
                )

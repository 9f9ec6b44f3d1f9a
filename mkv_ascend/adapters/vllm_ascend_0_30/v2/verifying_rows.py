# SPDX-License-Identifier: Apache-2.0
"""Rows whose recurrent states stand where a verification left them, in model runner V2."""

from __future__ import annotations

from typing import Any

import torch


def name_rows(common: Any, drafts: torch.Tensor, k: int) -> torch.Tensor:
    """Name every row that decodes: those without drafts may have had some in the step before.

    vllm-ascend names only rows with drafts to the builder of gated delta nets. How many tokens were
    accepted only the device knows, so a row that goes on behind a single token is named as well;
    its state stands in the same column either way.

    A row of more than K + 1 tokens is that of a dummy batch: a graph of more tokens than all
    requests verify is captured with rows as long as it takes.

    Args:
        common: vllm-ascend's metadata of the batch.
        drafts: number of drafts to verify of each row, int [rows]; -1 for other rows.
        k: most drafts of a row.

    Returns:
        The same, with 1 for rows that decode without drafts: the builder sees no verification where
        all rows have 0.
    """
    lengths = common.query_start_loc_cpu[: len(drafts) + 1].diff()
    decoding = ~common.is_prefilling[: len(drafts)] & (lengths > 0) & (lengths <= k + 1)
    return torch.where(decoding, drafts.clamp(min=1), drafts)

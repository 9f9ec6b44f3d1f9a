# SPDX-License-Identifier: Apache-2.0
"""Token ids of an embedding that is split by vocabulary over several devices."""

from __future__ import annotations

import torch

from emulated_npu.operators.registry import operator
from emulated_npu.operators.requirements import INTEGERS, require, require_dtype


@operator(
    "get_masked_input_and_mask",
    namespace="_C_ascend",
    source="vllm-ascend tests: test_vocabparallelembedding",
    limits="int32 or int64; 0 <= original start <= original end <= added start <= added end.",
)
def get_masked_input_and_mask(
    input: torch.Tensor,
    org_vocab_start_index: int,
    org_vocab_end_index: int,
    num_org_vocab_padding: int,
    added_vocab_start_index: int,
    added_vocab_end_index: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The row of each token id in this device's part of the embedding.

    The part holds the original tokens start to end - 1, then padding, then the added tokens.

    Returns the rows (0 for a token of another device) in the input's dtype, and a bool mask that is
    True for tokens of another device.
    """
    original = (input >= org_vocab_start_index) & (input < org_vocab_end_index)
    added = (input >= added_vocab_start_index) & (input < added_vocab_end_index)
    first_added_row = org_vocab_end_index - org_vocab_start_index + num_org_vocab_padding
    rows = torch.where(original, input - org_vocab_start_index, torch.zeros_like(input))
    rows = torch.where(added, input - added_vocab_start_index + first_added_row, rows)
    return rows.to(input.dtype), ~(original | added)


@get_masked_input_and_mask.check
def _check_masked_input(
    input: torch.Tensor,
    org_vocab_start_index: int,
    org_vocab_end_index: int,
    num_org_vocab_padding: int,
    added_vocab_start_index: int,
    added_vocab_end_index: int,
) -> None:
    require_dtype("input", input, INTEGERS)
    require(input.dim() >= 1, "input has no dimension; it must have 1 or more")
    bounds = [
        0,
        org_vocab_start_index,
        org_vocab_end_index,
        added_vocab_start_index,
        added_vocab_end_index,
    ]
    require(
        bounds == sorted(bounds) and num_org_vocab_padding >= 0,
        f"the bounds are {bounds[1:]} and the padding {num_org_vocab_padding}; the bounds must "
        f"rise and none be negative",
    )

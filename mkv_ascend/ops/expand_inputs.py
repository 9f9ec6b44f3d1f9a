# SPDX-License-Identifier: Apache-2.0
"""``expand_inputs``: the inputs of a proposal's first pass, and its slots, in one launch.

The draft first sees what the target just saw, without what was rejected, and the token that the
target sampled. A head on the target's hidden states (eagle, mtp) sees each token one place
earlier; a model of its own (draft_model) gets the sampled token as one row more; parallel drafting
adds rows for the tokens to be drafted.
"""

from __future__ import annotations

from typing import Any

import torch

from mkv_ascend.ops import checks, expand_reference
from mkv_ascend.ops.arguments import ExpandInputs
from mkv_ascend.ops.registration import CustomOp, register
from mkv_ascend.ops.schema import arguments_of, named_tensors

NAME = "expand_inputs"


def check(*arguments: Any) -> None:
    """Refuse wrong dtypes, shapes, strides and devices; see ``ExpandInputs``."""
    given = ExpandInputs(*arguments)
    sampled = given.sampled_per_request
    checks.require(sampled >= 1, NAME, f"sampled_per_request is {sampled}; it must be 1 or more")
    checks.require_model_length(NAME, given.max_model_len)
    checks.require_groups(NAME, given.block_tables, given.group_table)
    checks.require(
        (given.rope_positions is None) == (given.out_rope_positions is None),
        NAME,
        "rope_positions and out_rope_positions must be given together or not at all",
    )
    for name, (dtypes, shape) in _expected(given).items():
        tensor = getattr(given, name)
        if tensor is not None:
            checks.require_tensor(NAME, name, tensor, dtypes, shape)
    checks.require_one_device(NAME, named_tensors(given))


def _expected(
    given: ExpandInputs,
) -> dict[str, tuple[tuple[torch.dtype, ...], tuple[int | None, ...]]]:
    """Dtypes and shape of each argument that is a tensor."""
    tokens, requests = given.token_ids.shape[0], given.next_token_ids.shape[0]
    out_tokens, groups = given.out_token_ids.shape[0], len(given.block_tables)
    axes = None if given.rope_positions is None else given.rope_positions.shape[0]
    index, int32, mask = checks.INDEX_DTYPES, (torch.int32,), (torch.int8, torch.bool)
    return {
        "token_ids": (index, (None,)),
        "positions": (index, (tokens,)),
        "next_token_ids": (index, (None,)),
        "query_start_loc": (int32, (requests + 1,)),
        "num_requests": (int32, (1,)),
        "out_token_ids": (int32, (None,)),
        "out_positions": (index, (out_tokens,)),
        "rejected_mask": (mask, (out_tokens,)),
        "masked_mask": (mask, (out_tokens,)),
        "sample_indices": (int32, (requests * given.sampled_per_request,)),
        "out_query_start_loc": (int32, (requests + 1,)),
        "lengths": (int32, (requests,)),
        "next_positions": (index, (requests,)),
        "slots": (int32, (groups, out_tokens)),
        "num_rejected": (index, (requests,)),
        "rope_positions": (index, (None, tokens)),
        "out_rope_positions": (index, (axes, out_tokens)),
        "hidden_rows": (int32, (tokens,)),
    }


def reference(*arguments: Any) -> None:
    """The op in plain torch operations; see ``expand_inputs``."""
    expand_reference.write(ExpandInputs(*arguments))


_op = register(CustomOp(NAME, arguments_of(ExpandInputs), check, reference))


def expand_inputs(arguments: ExpandInputs) -> None:
    """Lay out a proposal's first pass: the target's rows become the draft's.

    Each live request's part of the output holds, in this order:

    - the tokens it keeps; in ``shift``, without the first;
    - its next token (what the target sampled);
    - ``sampled_per_request - 1`` tokens to be drafted in parallel, as ``parallel_token_id``;
    - a row of padding per rejected token.

    So it is ``sampled_per_request - shift`` rows longer than in the input. Row j of the part stands
    at the request's first position + j. Its rotary position is that of the request's input row j;
    past its kept tokens, counting on from the last.

    =============================  ========  ======================
    method                         shift     sampled_per_request
    =============================  ========  ======================
    eagle, eagle3, mtp             True      1
    draft_model                    False     1
    the same, parallel drafting    the same  number of draft tokens
    =============================  ========  ======================

    Rows at or past ``max_model_len`` keep their token, at position 0 with slot -1. Padding rows
    (rejected, or past the last live request's part) hold ``padding_token_id``, position 0, slot -1.
    What does not fit into T' rows is not written.

    Raises:
        ValueError: a wrong dtype, shape, stride or device, named by argument.
    """
    _op(*arguments)

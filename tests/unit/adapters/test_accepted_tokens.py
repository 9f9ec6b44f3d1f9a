# SPDX-License-Identifier: Apache-2.0
"""Which builders of recurrent states are given the numbers of accepted tokens, and how long."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from vllm.v1.attention.backends.mamba2_attn import Mamba2AttentionMetadataBuilder
from vllm.v1.attention.backends.short_conv_attn import ShortConvAttentionMetadataBuilder

from mkv_ascend.adapters.common.patches.recurrent import with_accepted_tokens


def made(base: type[Any]) -> Any:
    """A builder of this class whose ``build`` tells what it was given."""

    def build(self: Any, *args: Any, **given: Any) -> Any:
        return args, given

    return object.__new__(type("Builder", (base,), {"build": build}))


def test_builders_of_windows_and_states_are_told_while_the_block_runs() -> None:
    mamba2, short = made(Mamba2AttentionMetadataBuilder), made(ShortConvAttentionMetadataBuilder)
    other = made(object)
    groups: Any = [
        [SimpleNamespace(metadata_builders=[mamba2])],
        [SimpleNamespace(metadata_builders=[other]), SimpleNamespace(metadata_builders=[short])],
    ]
    accepted = torch.tensor([3, 0, 1], dtype=torch.int32)
    with with_accepted_tokens(groups, accepted):
        for builder in (mamba2, short):
            args, given = builder.build(0, "common")
            assert args == (0, "common")
            # A chunk of a prompt accepts none: it goes on from the state behind one token.
            assert given["num_accepted_tokens"].tolist() == [3, 1, 1]
        assert other.build(0, "common") == ((0, "common"), {})
    assert accepted.tolist() == [3, 0, 1], "the runner's numbers were changed"
    for builder in (mamba2, short):
        assert builder.build(0, "common") == ((0, "common"), {})

# SPDX-License-Identifier: Apache-2.0
"""Recurrent layers: padded rows, groups whose states move, numbers of accepted tokens."""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from vllm.v1.attention.backends.mamba2_attn import Mamba2AttentionMetadataBuilder
from vllm.v1.attention.backends.short_conv_attn import ShortConvAttentionMetadataBuilder
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec, MambaSpec
from vllm.v1.worker import mamba_utils

from mkv_ascend.adapters.common.patches import recurrent
from mkv_ascend.adapters.common.patches.recurrent import (
    groups_that_move,
    padded_verify_rows,
    with_accepted_tokens,
)


@given(
    rows=st.lists(st.tuples(st.integers(0, 9), st.booleans()), min_size=1, max_size=6),
    width=st.integers(2, 5),
)
def test_short_rows_repeat_their_last_token(rows: list[tuple[int, bool]], width: int) -> None:
    tokens = [[(row, place) for place in range(length)] for row, (length, _) in enumerate(rows)]
    starts = torch.tensor([0, *np.cumsum([len(row) for row in tokens])], dtype=torch.int32)
    flat = [token for row in tokens for token in row]
    expected = [
        row + row[-1:] * (width - len(row)) if verifying else row
        for row, (_, verifying) in zip(tokens, rows, strict=True)
    ]
    found = padded_verify_rows(starts, torch.tensor([verifying for _, verifying in rows]), width)
    if expected == tokens:
        assert found is None
        return
    assert found is not None
    longer = [flat[index] for index in found.source.tolist()]
    assert longer == [token for row in expected for token in row]
    assert found.starts.diff().tolist() == [len(row) for row in expected]
    assert found.starts.dtype == starts.dtype
    assert [longer[index] for index in found.kept.tolist()] == flat


def test_a_graph_finds_its_rows_again() -> None:
    """A captured graph reads them in each replay: their memory must stay theirs."""
    builder = SimpleNamespace()
    found = []
    for lengths in ([2, 2, 2], [2, 2, 2], [2, 3, 1]):
        starts = torch.tensor([0, *np.cumsum(lengths)], dtype=torch.int32)
        rows = padded_verify_rows(starts, torch.ones(3, dtype=torch.bool), 4)
        assert rows is not None
        common = SimpleNamespace(query_start_loc=starts, query_start_loc_cpu=starts)
        found.append(recurrent._on_device(builder, common, rows))
    assert found[0] is found[1]
    assert found[2] is not found[0]
    assert len(vars(builder)[recurrent.UNIFORM]) == 1


@dataclass
class Common:
    """The fields of vLLM's ``CommonAttentionMetadata`` that are read or changed."""

    query_start_loc: torch.Tensor
    query_start_loc_cpu: torch.Tensor
    seq_lens: torch.Tensor
    num_actual_tokens: int
    max_query_len: int
    _num_computed_tokens_cache: torch.Tensor | None = None

    def replace(self, **fields: Any) -> Common:
        return replace(self, **fields)

    def compute_num_computed_tokens(self) -> torch.Tensor:
        if self._num_computed_tokens_cache is None:
            self._num_computed_tokens_cache = self.seq_lens - self.query_start_loc.diff()
        return self._num_computed_tokens_cache


def built(lengths: list[int], drafts: list[int], named: Any, **others: Any) -> tuple[Common, Any]:
    """What vllm-ascend's builder is given for rows of so many tokens, K being 3, and its answer."""
    starts = torch.tensor([0, *np.cumsum(lengths)], dtype=torch.int32)
    common = Common(starts, starts, torch.full((len(lengths),), 20), sum(lengths), max(lengths))
    builder = SimpleNamespace(num_spec=3, **{recurrent.OF_THE_TARGET: named})
    given: list[Common] = []

    def original(builder: Any, prefix: int, common: Common, *rest: Any, **others: Any) -> Any:
        given.append(common)
        return SimpleNamespace(drafts=rest[1])

    patch = recurrent.build_of_padded_rows
    build = patch.functions[patch.record.targets[0]]
    answer = build(original, builder, 0, common, torch.ones(1), torch.tensor(drafts), **others)
    return given[0], answer


def test_builders_are_given_padded_rows_whose_computed_tokens_are_those_before_padding() -> None:
    """Columns of states are chosen by the tokens computed: the repetitions must not count."""
    longer, metadata = built([2, 4, 5, 1], [1, 3, -1, 0], recurrent.as_named)
    assert longer.query_start_loc_cpu.tolist() == [0, 4, 8, 13, 17]
    assert longer.query_start_loc.tolist() == [0, 4, 8, 13, 17]
    assert (longer.num_actual_tokens, longer.max_query_len) == (17, 5)
    assert longer.compute_num_computed_tokens().tolist() == [18, 16, 15, 19]
    rows = getattr(metadata, recurrent.ROWS)
    assert rows.source.tolist() == [0, 1, 1, 1, *range(2, 11), 11, 11, 11, 11]
    assert rows.kept.tolist() == [0, 1, *range(4, 14)]


def test_tokens_of_padding_requests_are_no_actual_tokens() -> None:
    longer, _ = built([2, 2, 2], [1, 1, -1], recurrent.as_named, num_actual_reqs=2)
    assert longer.num_actual_tokens == 8


def test_rows_are_named_with_the_largest_number_of_drafts() -> None:
    longer, metadata = built([1], [-1], lambda common, drafts, k: torch.full_like(drafts, k - 2))
    assert longer.query_start_loc_cpu.tolist() == [0, 4]
    assert metadata.drafts.tolist() == [1]


@pytest.mark.parametrize(
    ("lengths", "drafts", "named"),
    [([2, 4], [1, 3], None), ([4, 5], [3, -1], recurrent.as_named)],
    ids=["a draft's", "as long as can be"],
)
def test_other_batches_are_left_alone(lengths: list[int], drafts: list[int], named: Any) -> None:
    common, metadata = built(lengths, drafts, named)
    assert common.num_actual_tokens == sum(lengths)
    assert common._num_computed_tokens_cache is None
    assert not hasattr(metadata, recurrent.ROWS)


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

# SPDX-License-Identifier: Apache-2.0
"""When a request of padding stands for tokens of no request; engines show why it must.

``tests/emulated/drafting/test_shared_tokens.py`` and ``graphs/test_traced_drafts.py`` have these
engines.
"""

import sys
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from mkv_ascend.adapters.common import batch_rows


def runner_of(ends, *, mla=False):
    """A batch whose requests end at these tokens, of a runner that adds one as vllm-ascend's."""
    starts = SimpleNamespace(np=np.array([0, *ends, 0, 0]))

    def add(query_start_loc, tokens, requests, count):
        assert query_start_loc is starts
        assert count <= requests
        starts.np[requests + 1] = tokens
        return requests + 1

    return SimpleNamespace(
        vllm_config=object(),
        model_config=SimpleNamespace(use_mla=mla),
        query_start_loc=starts,
        _pad_query_start_loc_for_fia=add,
    )


@pytest.mark.parametrize(
    ("shares", "mla", "asked", "requests"),
    [
        (True, False, {"num_tokens": 3, "num_tokens_padded": 4}, 2),
        (True, False, {"num_tokens": 3, "num_tokens_padded": 4, "num_reqs_padded": 1}, 2),
        (True, False, {"num_tokens": 3, "num_tokens_padded": 3}, None),
        (True, False, {"num_tokens": 3}, None),
        (False, False, {"num_tokens": 3, "num_tokens_padded": 4}, None),
        # Its kernels are given lengths of queries in another way.
        (True, True, {"num_tokens": 3, "num_tokens_padded": 4}, None),
        (
            True,
            False,
            {"num_tokens": 3, "num_tokens_padded": 4, "for_cudagraph_capture": True},
            None,
        ),
    ],
)
def test_tokens_of_no_request_get_one(shares, mla, asked, requests, monkeypatch):
    host = SimpleNamespace(enable_sp=lambda _config: shares)
    monkeypatch.setitem(sys.modules, "vllm_ascend.utils", host)
    runner, given = runner_of([3], mla=mla), {"num_reqs": 1, **asked}
    batch_rows.cover_padding(runner, given)
    assert given == {"num_reqs": 1, **asked, **({} if requests is None else {"num_reqs_padded": 2})}
    assert runner.query_start_loc.np.tolist() == ([0, 3, 4, 0] if requests else [0, 3, 0, 0])


@dataclass
class Dense:
    """vllm-ascend's metadata of dense layers, as far as requests of padding change it."""

    attn_state: Any = field(default_factory=lambda: SimpleNamespace(name="ChunkedPrefill"))
    actual_seq_lengths_q: list[int] = field(default_factory=lambda: [2, 3])
    seq_lens: torch.Tensor = field(default_factory=lambda: torch.tensor([7, 9]))
    seq_lens_list: list[int] = field(default_factory=lambda: [7, 9])
    block_tables: torch.Tensor = field(default_factory=lambda: torch.tensor([[4, 5], [6, 0]]))


def config_of(*, shares_experts=True, shares_keys=1):
    parallel = SimpleNamespace(
        enable_expert_parallel=shares_experts,
        decode_context_parallel_size=shares_keys,
        prefill_context_parallel_size=1,
    )
    return SimpleNamespace(parallel_config=parallel)


@pytest.fixture
def dense(monkeypatch):
    host = SimpleNamespace(AscendMetadata=Dense)
    monkeypatch.setitem(sys.modules, "vllm_ascend.attention.attention_v1", host)


@pytest.mark.parametrize(
    ("state", "ends"), [("ChunkedPrefill", [2, 3, 6]), ("DecodeOnly", [2, 3, 4, 5, 6])]
)
@pytest.mark.usefixtures("dense")
def test_rows_behind_the_requests_get_one_of_padding(state, ends):
    """One for each row of a decode, whose requests have one token each; layers may share it."""
    given, other = Dense(SimpleNamespace(name=state)), SimpleNamespace(actual_seq_lengths_q=[2])
    metadata = {"layers.0": given, "layers.1": given, "layers.2": other, "layers.3": None}
    made = batch_rows.cover_rows(config_of(), metadata, 6)
    assert list(made) == list(metadata)
    shared, added = made["layers.0"], len(ends) - 2
    assert made["layers.1"] is shared
    assert made["layers.2"] is other
    assert shared.actual_seq_lengths_q == ends
    assert shared.seq_lens_list == shared.seq_lens.tolist() == [7, 9, *[1] * added]
    assert shared.block_tables.tolist() == [[4, 5], [6, 0], *[[0, 0]] * added]
    # What other passes may read stays as it was.
    assert given.actual_seq_lengths_q == [2, 3]


@pytest.mark.parametrize(
    ("config", "rows"),
    [
        (config_of(), 3),
        (config_of(shares_experts=False), 6),
        # Lengths of a rank's share of the keys are kept elsewhere.
        (config_of(shares_keys=2), 6),
    ],
)
@pytest.mark.usefixtures("dense")
def test_nothing_is_added_where_nothing_is_read(config, rows):
    metadata = Dense()
    assert batch_rows.cover_rows(config, {"layers.0": metadata}, rows)["layers.0"] is metadata


@pytest.mark.usefixtures("dense")
def test_metadata_of_parts_of_a_batch_is_left_alone():
    parts = [{"layers.0": Dense()}]
    assert batch_rows.cover_rows(config_of(), parts, 6) is parts

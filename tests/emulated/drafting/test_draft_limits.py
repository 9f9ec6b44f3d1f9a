# SPDX-License-Identifier: Apache-2.0
"""What a proposer of model runner V1 is asked for, and what its builders take for decodes."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
import vllm_ascend.ops  # noqa: F401  before the rest of it: its modules import in a circle
from vllm_ascend.attention.mla_v1 import AscendMLAMetadataBuilder

from tests.support import hosts

pytestmark = [pytest.mark.host("0.23"), pytest.mark.core]

strategies = hosts.module("drafting.strategies")
proposers = hosts.module("drafting.proposers")


@pytest.mark.parametrize(("before", "wide"), [(14, 15), (15, 16), (16, 16)])
def test_decodes_of_mla_are_no_wider_than_the_operator_takes(before: int, wide: int) -> None:
    """npu_fused_infer_attention_score documents 16 queries of a request for MLA in layout TND."""
    builder = object.__new__(AscendMLAMetadataBuilder)
    builder.decode_threshold = before
    strategies.widen_decodes(builder, 1)
    assert builder.decode_threshold == wide


def test_other_builders_stay_as_they_are() -> None:
    builder = SimpleNamespace(decode_threshold=1)
    strategies.widen_decodes(builder, 1)
    assert builder.decode_threshold == 1


@pytest.mark.parametrize(
    ("asked", "columns"), [({}, 3), ({"num_speculative_tokens": 2}, 2)], ids=["all", "two"]
)
def test_fewer_drafts_are_the_first_ones(
    asked: dict[str, int], columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    drafts = torch.arange(6).view(2, 3)
    seen = []

    def propose(target: str, agreed: int | None) -> torch.Tensor:
        seen.append((target, agreed))
        return drafts

    monkeypatch.setattr(proposers, "target_output", lambda _, given: "output")
    proposer = SimpleNamespace(assembly=SimpleNamespace(propose=propose))
    graph = SimpleNamespace(uniform=True, num_reqs=4)
    found = proposers._propose(proposer, target_model_batch_desc=graph, **asked)
    assert found.tolist() == drafts[:, :columns].tolist()
    assert seen == [("output", 4)]


def test_only_a_graph_of_verify_steps_tells_how_many_requests_all_ranks_have() -> None:
    uniform, mixed = (SimpleNamespace(uniform=one, num_reqs=4) for one in (True, False))
    asked = (uniform, mixed, None)
    assert [proposers.requests_of_verify_step(one) for one in asked] == [4, None, None]

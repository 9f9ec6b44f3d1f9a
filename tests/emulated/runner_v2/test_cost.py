# SPDX-License-Identifier: Apache-2.0
"""What a proposal costs on model runner V2, by exact count (``proposal_costs.py``)."""

from functools import partial

import pytest

from tests.support import hosts, proposal_costs
from tests.support.proposal_costs import MAX_LAUNCHES, REPLAY, UPDATE
from tests.support.stock import RUNNER_V2

hosts.skip_module_unless("vllm_ascend_0_30", "0.23.0 runs model runner V1 alone")

probe = partial(proposal_costs.probe, max_tokens=24, variables=RUNNER_V2)


@pytest.fixture(scope="module")
def pair():
    """A target of one KV group; its draft uses that and one more."""
    return probe("llama_target", "gemma3", num_speculative_tokens=4)


@pytest.mark.core
def test_a_proposal_over_two_groups_is_a_handful_of_launches(pair):
    assert pair["proposals"]
    for row in pair["proposals"]:
        assert sum(row["launches"].values()) <= MAX_LAUNCHES, row
        assert row["launches"]["mkv_ascend::draft_plan"] == 1
        assert row["launches"]["mkv_ascend::expand_inputs"] == 1
        assert row["builds"] == 2
        assert row["host_reads"] + row["waited_for"] == 1


def test_the_targets_pass_builds_nothing_for_the_drafts_layers(pair):
    """The target's layers lie in one group, whatever is beside them."""
    for target in (probe("llama_target", None)["target"], pair["target"]):
        assert target["builds"] == target["passes"] > 0


@pytest.mark.core
def test_a_replayed_proposal_is_a_handful_of_launches_beside_its_graph():
    """For a draft of two groups, padded from 3 requests to 4."""
    rows = probe(
        "llama_target",
        "gemma3",
        num_speculative_tokens=3,
        graphs="FULL_DECODE_ONLY",
        capture_sizes=(16,),
    )["proposals"]
    replayed = [row for row in rows if REPLAY in row["launches"]]
    assert len(replayed) > 3
    for row in replayed:
        assert (row["host_reads"], row["waited_for"]) == (0, 1)
        assert row["launches"].pop(REPLAY) == 1
        row["launches"].pop(UPDATE)
        assert sum(row["launches"].values()) <= MAX_LAUNCHES, row

# SPDX-License-Identifier: Apache-2.0
"""What a proposal costs, by exact count: launches, builder runs and host reads.

Counted outside of the draft's own forward, logits, sampling and feeding back (`proposal_costs.py`).
"""

import pytest

from tests.support.proposal_costs import MAX_LAUNCHES, REPLAY, UPDATE, probe


@pytest.fixture(scope="module")
def pair():
    """A target of one KV group; its draft uses that and one more."""
    return probe("llama_target", "gemma3", num_speculative_tokens=4)


@pytest.mark.core
@pytest.mark.host("0.23")
def test_a_proposal_over_two_groups_is_a_handful_of_launches(pair):
    assert pair["proposals"]
    for row in pair["proposals"]:
        assert sum(row["launches"].values()) <= MAX_LAUNCHES, row
        assert row["launches"]["mkv_ascend::draft_plan"] == 1
        assert row["launches"]["mkv_ascend::expand_inputs"] == 1


@pytest.mark.core
@pytest.mark.host("0.23")
def test_builders_run_twice_for_all_steps_and_groups(pair):
    assert {row["builds"] for row in pair["proposals"]} == {2}


@pytest.mark.core
@pytest.mark.host("0.23")
def test_the_host_waits_for_device_memory_once(pair):
    assert {row["host_reads"] + row["waited_for"] for row in pair["proposals"]} == {1}


@pytest.mark.host("0.23")
def test_an_mla_draft_takes_its_rotary_rows_once_and_verified_rows_as_decodes():
    """Taken for a prefill with cached context, a pass would have chunks of it uploaded."""
    rows = probe("llama_target", "deepseek_v2_draft", num_speculative_tokens=4)["proposals"]
    assert rows
    for row in rows:
        assert sum(row["launches"].values()) <= MAX_LAUNCHES, row
        assert row["launches"]["aten::index_select"] == 2
        assert row["builds"] == 2


@pytest.mark.core
def test_a_replayed_proposal_is_four_launches_beside_its_graph():
    """For a head that joins several states of the target, padded from 3 requests to 4."""
    rows = probe(
        "gpt_oss",
        "gpt_oss_eagle3",
        num_speculative_tokens=3,
        speculative={"method": "eagle3"},
        max_tokens=24,
        graphs="FULL_DECODE_ONLY",
        capture_sizes=(16,),
    )["proposals"]
    replayed = [row for row in rows if REPLAY in row["launches"]]
    assert len(replayed) > 3
    for row in replayed:
        # Attention with sinks takes lengths as integers: they are copied, and waited for once.
        assert (row["host_reads"], row["waited_for"]) == (0, 1)
        assert row["launches"] == {
            "mkv_ascend::expand_inputs": 1,
            "mkv_ascend::draft_plan": 1,
            "aten::copy_": 2,  # lengths to the host, the target's states to the graph's buffer
            REPLAY: 1,
            UPDATE: 3,
        }


SPARSE, ON_DEVICE = "deepseek_v32_target", {"attention": {"draft": "flash_attention_3"}}


@pytest.mark.host("0.23", cases=["sparse", "sparse_replayed"])
@pytest.mark.parametrize(
    ("draft", "fields"),
    [
        (SPARSE, {}),
        (SPARSE, {"graphs": "FULL_DECODE_ONLY", "capture_sizes": (12,)}),
        ("llama_draft", {"mkv_ascend": ON_DEVICE}),
    ],
    ids=["sparse", "sparse_replayed", "flash_attention_3"],
)
def test_the_host_reads_nothing_where_operators_take_lengths_as_tensors(draft, fields):
    rows = probe("llama_target", draft, num_speculative_tokens=3, **fields)["proposals"]
    assert len(rows) > 3
    assert any(REPLAY in row["launches"] for row in rows) == ("graphs" in fields)
    assert {row["host_reads"] + row["waited_for"] for row in rows} == {0}


@pytest.mark.host("0.23")
def test_the_targets_pass_costs_what_it_costs_without_a_draft(pair):
    alone = probe("llama_target", None)["target"]
    beside = pair["target"]
    assert beside["launches"] == alone["launches"]
    assert alone["builds"] == alone["passes"]
    assert beside["builds"] == beside["passes"]


@pytest.mark.host("0.23")
def test_equal_groups_of_a_target_share_builder_and_slots():
    alone = probe("gemma3", None)["target"]
    assert alone["builds"] == alone["passes"], "one build serves windows and full attention"
    assert alone["launches"]["mkv_ascend::target_slots"] == 1

# SPDX-License-Identifier: Apache-2.0
"""Acceptance from vLLM's metrics, and the tables that the demo prints."""

import io

import pytest
from rich.console import Console

from examples.demo import client as demo_client

METRICS = {
    "vllm:spec_decode_num_drafts_total": 40.0,
    "vllm:spec_decode_num_accepted_tokens_total": 55.0,
    "vllm:spec_decode_num_accepted_tokens_per_pos_total[0]": 30.0,
    "vllm:spec_decode_num_accepted_tokens_per_pos_total[1]": 15.0,
    "vllm:spec_decode_num_accepted_tokens_per_pos_total[2]": 10.0,
}


def text_of(table, width=160):
    console = Console(file=io.StringIO(), width=width)
    console.print(table)
    return console.file.getvalue()


def title_of(table):
    return str(table.title)


def test_acceptance_counts_each_position_and_one_token_of_the_target_itself():
    measured = demo_client.acceptance(METRICS)
    assert measured.proposals == 40
    assert measured.accepted == (30, 15, 10)
    assert measured.mean_length == pytest.approx(1 + 55 / 40)


@pytest.mark.parametrize("metrics", [{}, {"vllm:spec_decode_num_drafts_total": 0.0}])
def test_without_a_proposal_the_mean_length_is_that_of_the_target_alone(metrics):
    measured = demo_client.acceptance(metrics)
    assert (measured.proposals, measured.accepted, measured.mean_length) == (0, (), 1.0)
    assert title_of(demo_client.acceptance_table(metrics)).endswith("acceptance length 1.00")


def test_the_acceptance_table_counts_positions_from_one():
    table = demo_client.acceptance_table(METRICS)
    assert title_of(table) == "Acceptance: 40 proposals, mean acceptance length 2.38"
    text = text_of(table)
    rows = [line.split() for line in text.splitlines() if "%" in line]
    assert [(row[1], row[3], row[5]) for row in rows] == [
        ("1", "30", "75.0%"),
        ("2", "15", "37.5%"),
        ("3", "10", "25.0%"),
    ]


def test_replays_are_counted_against_the_proposals():
    text = demo_client.replays_text({"captured": [1, 2], "replays": 38}, METRICS)
    assert text.startswith("38 proposals were replayed from ACL graphs")
    assert "The target verified 40:" in text
    assert "for each of 1, 2 requests" in text
    eager = demo_client.replays_text({"captured": [], "replays": 0}, METRICS)
    assert eager == "The draft has no ACL graphs: its passes ran eagerly."


def row(name, **fields):
    return {
        "name": name,
        "role": "target",
        "kind": "mla",
        "backend": "mla",
        "kv_group": 0,
        "chosen_by": "default",
        "detail": "best for mla",
        **fields,
    }


def test_layers_that_are_alike_share_a_line_and_roles_do_not():
    draft = {"role": "draft", "kind": "full_attention", "backend": "fused_infer_attention"}
    rows = [row(f"model.layers.{index}.self_attn.attn") for index in range(3)]
    rows.append(row("draft_model.model.layers.0.self_attn.attn", kv_group=None, **draft))
    lines = [line for line in text_of(demo_client.backend_table(rows)).splitlines() if "0" in line]
    assert len(lines) == 2
    assert "0-2" in lines[0]
    assert "target" in lines[0]
    assert "fused_infer_attention" in lines[1]
    assert "draft" in lines[1]


@pytest.mark.parametrize("width", [80, 100, 160])
def test_no_terminal_is_too_narrow_for_the_name_of_a_backend(width):
    rows = [row("model.layers.0.self_attn.attn", backend="fused_infer_attention", kind="mla")]
    text = text_of(demo_client.backend_table(rows), width)
    assert "fused_infer_attention" in text
    assert "…" not in text

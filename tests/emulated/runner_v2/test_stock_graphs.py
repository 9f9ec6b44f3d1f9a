# SPDX-License-Identifier: Apache-2.0
"""Graphs of stock model runner V2: those of a target work, full ones of a draft do not."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests.support import engine, hosts, stock

hosts.skip_module_unless("vllm_ascend_0_30", "0.23.0 runs model runner V1 instead, with a warning")


@pytest.mark.nightly("other cases of it stay", cases=["*-True"])
@pytest.mark.parametrize(
    ("graphs", "traced"),
    [("FULL_DECODE_ONLY", False), ("PIECEWISE", True), ("FULL_AND_PIECEWISE", True)],
)
def test_graphs_of_a_target(graphs: str, traced: bool) -> None:
    stock.run("llama_target", v2=True, graphs=graphs, traced=traced)


@pytest.mark.nightly("near to tests that stay")
def test_full_graphs_of_a_draft_read_a_pinned_copy_that_is_gone() -> None:
    """Each launch of a draft's attention copies its lengths from a temporary in pinned memory."""
    with pytest.raises(
        engine.EngineFailedError,
        match=r"attention_v1\.py:\d+\) uses pinned host memory at \w+ that was freed",
    ):
        stock.run(
            "llama_target",
            "llama_eagle3",
            v2=True,
            graphs="FULL_DECODE_ONLY",
            speculative={"method": "eagle3"},
        )


STEPS, LENGTHS = 3, [7, 9]
TABLES = {"draft.0": "blocks of one group", "draft.1": "blocks of another"}


def updates(is_first_pass: bool) -> list[dict[str, Any]]:
    """What stock gives the graph of a head of two layers, in two KV groups, to update."""
    from vllm_ascend.worker.v2.spec_decode.autoregressive.speculator import (
        AscendAutoRegressiveSpeculator,
    )

    speculator = SimpleNamespace(
        use_dcp=False,
        input_batch=SimpleNamespace(num_reqs=len(LENGTHS), seq_lens_np=LENGTHS),
        num_speculative_steps=STEPS,
        max_model_len=512,
        draft_attn_layer_names=list(TABLES),
    )
    metadata = {
        layer: SimpleNamespace(
            block_tables=table, actual_seq_lengths_q=[1, 2], seq_lens_list=LENGTHS
        )
        for layer, table in TABLES.items()
    }
    found: list[dict[str, Any]] = AscendAutoRegressiveSpeculator.build_fia_params(
        speculator, len(LENGTHS), metadata, is_first_pass
    )
    return found


def test_the_first_pass_updates_one_layer_of_a_head_of_two() -> None:
    """The graph has an attention of each, so vllm-ascend ends with an AssertionError there."""
    assert [one["layer_name"] for one in updates(is_first_pass=True)] == ["draft.0"]


def test_later_passes_give_all_layers_the_blocks_of_the_first_ones_group() -> None:
    passes = updates(is_first_pass=False)
    assert [one["layer_name"] for one in passes] == list(TABLES) * (STEPS - 1)
    assert {one["block_table"] for one in passes} == {TABLES["draft.0"]}

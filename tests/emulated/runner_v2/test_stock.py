# SPDX-License-Identifier: Apache-2.0
"""Faults of model runner V2 of vllm-ascend without our plugin, which reports name."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tests.support import hosts, loop_judgement, stock

hosts.skip_module_unless("vllm_ascend_0_30", "0.23.0 runs model runner V1 instead, with a warning")


@pytest.mark.nightly("near to tests that stay")
def test_later_passes_of_a_head_see_rejected_tokens() -> None:
    """Their lengths count rejected tokens, so the first pass alone is right. Tokens stay right."""
    outputs, result = loop_judgement.loops_and_engine(
        "llama_target", "llama_eagle3", "eagle3", 3, environment=stock.STOCK | stock.RUNNER_V2
    )
    assert result.tokens == [output.tokens for output in outputs]
    first, *later = loop_judgement.wrong_tokens(outputs, result, 3)
    assert first == 0
    assert sum(later) > 0


STEPS, LENGTHS = 3, [7, 9]
TABLES = {"draft.0": "blocks of one group", "draft.1": "blocks of another"}


def test_later_passes_give_all_layers_the_blocks_of_the_first_ones_group() -> None:
    """What it gives the graph of a head of two layers, in two KV groups, to update."""
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
    passes = AscendAutoRegressiveSpeculator.build_fia_params(
        speculator, len(LENGTHS), metadata, False
    )
    assert [one["layer_name"] for one in passes] == list(TABLES) * (STEPS - 1)
    assert {one["block_table"] for one in passes} == {TABLES["draft.0"]}

# SPDX-License-Identifier: Apache-2.0
"""Drafts in speculators' format: what vLLM reads of them, and the command that they stand for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mkv_ascend.checks.config_file import ConfigFileError, read_config_file
from mkv_ascend.checks.speculators_format import as_vllm_reads

NUMBERS = {"model_type": "llama", "num_hidden_layers": 1, "hidden_size": 128}


def config(kind: str = "eagle3", **more: Any) -> dict[str, Any]:
    return {
        "architectures": ["Eagle3Speculator"],
        "auto_map": {"": "eagle3.Config"},
        "speculators_model_type": kind,
        "draft_vocab_size": 32000,
        "speculators_config": {
            "proposal_methods": [{"speculative_tokens": 5}],
            "verifier": {"name_or_path": "/models/target"},
        },
        "transformer_layer_config": NUMBERS,
        **more,
    }


def test_numbers_of_the_layers_stand_where_vllm_has_them() -> None:
    read = as_vllm_reads(config())
    assert {name: read[name] for name in NUMBERS} == NUMBERS
    assert read["architectures"] == ["Eagle3LlamaForCausalLM"]
    assert read["draft_vocab_size"] == 32000
    assert "auto_map" not in read
    assert "transformer_layer_config" not in read
    plain = {"model_type": "llama", "transformer_layer_config": NUMBERS}
    assert as_vllm_reads(plain) is plain


@pytest.mark.parametrize("whole", [True, False])
def test_masks_of_a_block_are_those_that_it_was_trained_with(whole: bool) -> None:
    read = as_vllm_reads(config("dflash", mask_token_id=7, sliding_window_non_causal=whole))
    assert read["architectures"] == ["DFlashDraftModel"]
    assert read["dflash_config"] == {"mask_token_id": 7, "causal": not whole}
    assert as_vllm_reads(config("dflash"))["dflash_config"]["causal"] is False


def test_numbers_of_the_layers_are_checked(tmp_path: Path) -> None:
    numbers = {**NUMBERS, "num_hidden_layers": -1}
    (tmp_path / "config.json").write_text(json.dumps(config(transformer_layer_config=numbers)))
    with pytest.raises(ConfigFileError, match="num_hidden_layers is -1"):
        read_config_file(tmp_path)

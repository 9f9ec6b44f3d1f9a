# SPDX-License-Identifier: Apache-2.0
"""Commands that vllm-ascend serves without this plugin are not refused with it.

``vllm serve`` asks the same checks, so whatever they refuse cannot be served at all.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import transformers  # noqa: F401 - once, or every plan asks a process of its own

from mkv_ascend.checks.judging import judge
from mkv_ascend.checks.served import served
from tests.support.host_checks import DEVICE, EQUAL_PAGES, SHARED, refused

NATIVE = {"kv_connector": "OffloadingConnector", "kv_role": "kv_both"}
IN_MANY = {
    "kv_connector": "MultiConnector",
    "kv_role": "kv_both",
    "kv_connector_extra_config": {"connectors": [NATIVE]},
}


@pytest.mark.parametrize(
    "option",
    [{"kv_transfer_config": NATIVE}, {"kv_transfer_config": IN_MANY}, {"kv_offloading_size": 8}],
    ids=["alone", "among many", "by size"],
)
@pytest.mark.parametrize("target", ["Llama-3.1-8B", "gemma-3-1b", "LFM2-1.2B"])
def test_one_host_has_a_worker_for_vllms_offload(
    target: str, option: dict[str, Any], models: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """vllm-ascend 0.30.0rc2's takes keys and values apart, several KV groups, and states."""
    monkeypatch.delenv("VLLM_USE_SIMPLE_KV_OFFLOAD", raising=False)
    engine = {"model": models[target], "max_model_len": 4096, **option}
    assert refused(engine, EQUAL_PAGES) == {}
    assert set(refused(engine, SHARED)) == {"kv-connector"}


@pytest.mark.parametrize("asked", ["fp8", "fp8_ds_mla"])
def test_one_host_keeps_what_an_indexer_chooses_in_the_models_dtype(
    asked: str, models: dict[str, str], tmp_path: Path
) -> None:
    values = json.loads(Path(models["sparse"], "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**values, "index_head_dim": 128}))
    engine: dict[str, Any] = {"model": str(tmp_path), "tensor_parallel_size": 8}
    plain = served(*judge(engine, DEVICE, SHARED))
    answer = served(*judge({**engine, "kv_cache_dtype": asked}, DEVICE, SHARED))
    *_, note = (note for note in answer.notes if note not in plain.notes)
    assert note.startswith(f"--kv-cache-dtype {asked} has no effect")
    assert note.partition(" in ")[2].startswith("bfloat16")
    assert dataclasses.replace(answer, notes=plain.notes) == plain
    assert plain.bytes_per_block
    assert "kv-cache-dtype" in refused({**engine, "kv_cache_dtype": asked}, EQUAL_PAGES)
    dense = {"model": models["DeepSeek-V3"], "kv_cache_dtype": asked}
    assert "kv-cache-dtype" in refused(dense, SHARED)

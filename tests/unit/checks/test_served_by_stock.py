# SPDX-License-Identifier: Apache-2.0
"""Commands that vllm-ascend serves without this plugin are not refused with it.

``vllm serve`` asks the same checks, so whatever they refuse cannot be served at all.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import transformers  # noqa: F401 - once, or every plan asks a process of its own

from mkv_ascend import cli
from mkv_ascend.adapters.common.early_checks import front_check
from mkv_ascend.checks.host_rules import HostRules
from mkv_ascend.checks.judging import judge
from mkv_ascend.checks.served import served
from tests.support.host_checks import DEVICE, EQUAL_PAGES, SHARED, refused
from tests.support.mistake import spec

BOTH = pytest.mark.parametrize("rules", [SHARED, EQUAL_PAGES], ids=["0.23", "0.30"])
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


@BOTH
def test_no_memory_for_caches_says_nothing(rules: HostRules, models: dict[str, str]) -> None:
    """vllm-ascend's workers read 0 as if the option were not there."""
    engine: dict[str, Any] = {"model": models["Llama-3.1-8B"], "max_model_len": 8192}
    plain = served(*judge(engine, DEVICE, rules))
    assert plain.cache_bytes
    assert served(*judge({**engine, "kv_cache_memory_bytes": 0}, DEVICE, rules)) == plain
    said = refused({**engine, "kv_cache_memory_bytes": -1}, rules)
    assert "a whole number from 0 on" in said["number"]
    assert "number" in refused({**engine, "max_num_seqs": 0}, rules)


@BOTH
@pytest.mark.parametrize(
    ("said", "asked", "is_refused"),
    [(None, 8193, True), (16384, 16384, False), (16384, 16385, True), (4096, 8192, False)],
    ids=str,
)
def test_requests_of_the_length_that_the_model_says_beside_its_positions(
    said: int | None,
    asked: int,
    is_refused: bool,
    rules: HostRules,
    models: dict[str, str],
    tmp_path: Path,
) -> None:
    """``_get_and_verify_max_len`` of vLLM takes ``model_max_length`` of config.json, too."""
    values = json.loads(Path(models["Llama-3.1-8B"], "config.json").read_text())
    values |= {"max_position_embeddings": 8192, "rope_scaling": None}
    if said is not None:
        values["model_max_length"] = said
    (tmp_path / "config.json").write_text(json.dumps(values))
    found = refused({"model": str(tmp_path), "max_model_len": asked}, rules)
    assert ("max-model-len" in found) is is_refused


@pytest.mark.parametrize(
    ("options", "packing", "is_refused"),
    [
        ({}, "fill", True),
        ({"data_parallel_backend": "ray"}, None, True),
        ({"data_parallel_backend": "ray"}, "strict", True),
        ({"data_parallel_backend": "ray"}, "fill", False),
        ({"data_parallel_backend": "ray"}, "span", False),
        ({"data_parallel_backend": "ray", "data_parallel_address": "10.0.0.2"}, None, False),
        ({"data_parallel_backend": "ray", "data_parallel_size_local": 1}, None, False),
        ({"data_parallel_address": "10.0.0.2"}, None, True),
        ({"distributed_executor_backend": "ray"}, None, False),
    ],
    ids=str,
)
def test_copies_that_ray_may_place_on_other_nodes(
    options: dict[str, Any],
    packing: str | None,
    is_refused: bool,
    models: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By default vLLM asks the node of the address for room for all that are local."""
    monkeypatch.delenv("VLLM_RAY_DP_PACK_STRATEGY", raising=False)
    if packing is not None:
        monkeypatch.setenv("VLLM_RAY_DP_PACK_STRATEGY", packing)
    engine = {"model": models["Llama-3.1-8B"], "tensor_parallel_size": 8, "data_parallel_size": 2}
    assert ("devices" in refused({**engine, **options}, SHARED)) is is_refused


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


@pytest.mark.parametrize("role", ["target", "draft", "elsewhere", "both files"])
def test_what_only_vllm_reads_is_not_refused(
    role: str, models: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """vLLM makes a configuration of Mistral's params.json; stock serves a folder of such a one."""
    (tmp_path / "params.json").write_text("{}")
    llama, mistral = models["Llama-3.1-8B"], str(tmp_path)
    if role == "both files":
        shutil.copy(Path(llama, "config.json"), tmp_path)
    words = {"draft": [llama, *spec(mistral)], "elsewhere": [llama, "--hf-config-path", mistral]}
    status = cli.main(["check", "--", "vllm", "serve", *words.get(role, [mistral])])
    said = capsys.readouterr().err
    assert status == (0 if role == "both files" else 2)
    assert ("only vLLM reads" in said) is (role != "both files")
    assert ((llama if role == "elsewhere" else mistral) in said) is (role != "both files")


@dataclasses.dataclass
class Arguments:
    """As vLLM's ``EngineArgs``, as far as this needs them."""

    model: str = ""
    tensor_parallel_size: int = 1


def test_vllm_serve_leaves_to_vllm_what_only_it_reads(
    tmp_path: Path,
) -> None:
    (tmp_path / "params.json").write_text("{}")
    assert front_check.check(Arguments(str(tmp_path), tensor_parallel_size=0))
    assert not front_check.check(Arguments(str(tmp_path / "absent")))

# SPDX-License-Identifier: Apache-2.0
"""Quantised weights and caches, as ModelSlim describes them: what is refused, and what is kept."""

from __future__ import annotations

import dataclasses
import json
import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from mkv_ascend.adapters import installed as installed_host
from mkv_ascend.attention.entry import DeviceGeneration
from mkv_ascend.checks import from_config
from mkv_ascend.checks.about_formats import INT8_PREDICTORS
from mkv_ascend.checks.facts import DeviceFacts
from mkv_ascend.checks.gathering import gather
from mkv_ascend.checks.judging import refusals
from mkv_ascend.checks.planning_inputs import Asked
from mkv_ascend.checks.refusal import RefusedError
from mkv_ascend.checks.weight_formats import DESCRIPTION, read_weight_formats
from tests.support.predictors import write_config

DEVICE = DeviceFacts(8, 64 << 30, DeviceGeneration.A2, "a test")
RULES = {adapter.FINGERPRINTS.parent.name: adapter.RULES for adapter in installed_host.adapters()}
OLDER = RULES["vllm_ascend_0_23"]
LAYER = "model.layers.{}.self_attn.k_proj"


def described(folder: str, into: Path, layers: int = 0, kind: str = "W8A8", **changed: Any) -> str:
    """A copy of a model's folder with a description: C8 of its first ``layers``."""
    shutil.copytree(folder, into)
    config = json.loads((into / "config.json").read_text()) | changed
    (into / "config.json").write_text(json.dumps(config))
    names: dict[str, str] = {f"{LAYER.format(0)}.weight": kind, "model.norm.weight": "FLOAT"}
    if layers:
        names["kv_cache_type"] = "C8"
        names |= {f"{LAYER.format(layer)}.kv_cache_scale": "C8" for layer in range(layers)}
    (into / DESCRIPTION).write_text(json.dumps(names))
    return str(into)


def codes(engine: dict[str, Any], **device: Any) -> dict[str, str]:
    facts = gather(engine, dataclasses.replace(DEVICE, **device), OLDER)
    return {found.code: str(found) for found in refusals(facts)}


def test_whole_numbers_are_served(models: dict[str, str], tmp_path: Path) -> None:
    model = described(models["Qwen3-0.6B"], tmp_path / "model", layers=28)
    assert codes({"model": model}) == {}
    formats = read_weight_formats(Path(model), {})
    assert formats is not None
    assert formats.kinds == {"W8A8", "FLOAT"}
    assert formats.int8_layers == set(range(28))


def test_experts_without_matrices_are_served_beside_plain_ones(
    models: dict[str, str], tmp_path: Path
) -> None:
    plain = Path(shutil.copytree(models["DeepSeek-V2-Lite"], tmp_path / "plain"))
    config = json.loads((plain / "config.json").read_text())
    (plain / "config.json").write_text(json.dumps(config | {"zero_expert_num": 4}))
    assert "weight-format" not in codes({"model": str(plain)})
    model = described(models["DeepSeek-V2-Lite"], tmp_path / "model", zero_expert_num=4)
    said = codes({"model": model})["weight-format"]
    assert "has experts without matrices (zero_expert_num) beside quantised ones" in said
    none = described(model, tmp_path / "none", zero_expert_num=0)
    assert "weight-format" not in codes({"model": none})


@pytest.mark.parametrize("kind", ["W8A8_MXFP8", "W4A8_MXFP4", "W8A8FP8_DYNAMIC"])
def test_floating_point_weights_need_a5(kind: str, models: dict[str, str], tmp_path: Path) -> None:
    model = described(models["Qwen3-0.6B"], tmp_path / "model", kind=kind)
    said = codes({"model": model})["weight-format"]
    assert f"quantised by {kind}, which no operator of Ascend A2" in said
    assert "Possible: Ascend A5; " in said
    assert codes({"model": model}, generation=DeviceGeneration.A5) == {}
    draft = {"model": model, "num_speculative_tokens": 3}
    engine = {"model": models["Qwen3-0.6B"], "speculative_config": draft}
    assert "weights of the draft" in codes(engine)["weight-format"]


def test_what_is_asked_for_wins_over_config_json(models: dict[str, str], tmp_path: Path) -> None:
    """Weights that were quantised anew keep the config.json of those that they were made from."""
    config = {"quantization_config": {"quant_method": "fp8"}}
    model = described(models["Qwen3-0.6B"], tmp_path / "model", **config)
    assert codes({"model": model, "quantization": "ascend"}) == {}
    assert codes({"model": model}) != {}


@pytest.mark.parametrize(
    ("changed", "engine", "said"),
    [
        ({"head_dim": 64}, {}, "with heads of 64 elements. Possible: heads of 128"),
        ({}, {"dtype": "float16"}, "--dtype is float16. Possible: bfloat16"),
        (
            {"architectures": ["LlamaForCausalLM"]},
            {},
            "does not load their scales for LlamaForCausalLM. Possible: Glm4MoeForCausalLM, ",
        ),
    ],
)
def test_a_cache_of_8_bits_that_no_operator_takes(
    changed: dict[str, Any],
    engine: dict[str, Any],
    said: str,
    models: dict[str, str],
    tmp_path: Path,
) -> None:
    model = described(models["Qwen3-0.6B"], tmp_path / "model", layers=28, **changed)
    assert said in codes({"model": model, **engine})["cache-format"]


@pytest.mark.parametrize("layers", [2, 3])
def test_scales_of_drafting_layers_are_not_loaded(layers: int, tmp_path: Path) -> None:
    """Layer 2 of such a model is the one that drafts."""
    write_config("glm4_moe", tmp_path)
    model = described(str(tmp_path), tmp_path / "model", layers=layers, head_dim=128)
    mtp = {"method": "mtp", "num_speculative_tokens": 3}
    assert "cache-format" not in codes({"model": model, "dtype": "bfloat16"})
    found = codes({"model": model, "dtype": "bfloat16", "speculative_config": mtp})
    if layers == 2:
        assert "cache-format" not in found
        planned = from_config.find(Asked({"model": model, "speculative_config": mtp}), OLDER)
        dtypes = [layer.layout.components[0].dtype for layer in planned.inputs.layers]
        assert dtypes == ["int8", "int8", "bfloat16"]
    else:
        said = found["cache-format"]
        assert "drafting layers of " in said
        assert "in layer 2, and vLLM does not load their scales for glm4_moe. Possible: " in said


def test_which_drafting_layers_load_scales() -> None:
    """By the sources of the installed vLLM."""
    found = find_spec("vllm")
    assert found is not None
    assert found.submodule_search_locations
    folder = Path(found.submodule_search_locations[0], "model_executor", "models")
    types = ("ernie", "glm4_moe", "hy_v3", "mimo", "mimo_v2", "step3p5")
    sources = {name: (folder / f"{name}_mtp.py").read_text(encoding="utf-8") for name in types}
    loading = {name for name, source in sources.items() if "get_cache_scale" in source}
    assert loading == INT8_PREDICTORS


def test_the_option_int8_where_the_host_has_it(models: dict[str, str], tmp_path: Path) -> None:
    newer = RULES["vllm_ascend_0_30"]
    model = described(models["Qwen3-0.6B"], tmp_path / "model", layers=28)
    engine = {"model": model, "kv_cache_dtype": "int8"}
    assert not refusals(gather(engine, DEVICE, newer))
    assert set(codes(engine)) == {"kv-cache-dtype"}
    plain = gather({**engine, "model": models["Qwen3-0.6B"]}, DEVICE, newer)
    assert [refusal.code for refusal in refusals(plain)] == ["kv-cache-dtype"]


@pytest.mark.parametrize(
    ("role", "scales", "refuses"),
    [
        ("kv_consumer", True, set()),
        ("kv_consumer", False, {"kv-cache-dtype"}),
        ("kv_producer", True, {"kv-cache-dtype"}),
        ("kv_both", True, {"kv-cache-dtype"}),
        (None, True, {"kv-cache-dtype"}),
    ],
)
def test_the_option_int8_for_latents_where_others_read_prompts(
    role: str | None, scales: bool, refuses: set[str], models: dict[str, str], tmp_path: Path
) -> None:
    model = tmp_path / "model"
    described(models["DeepSeek-V3"], model)
    names = {"model.layers.0.self_attn.fa_k.scale": "FAKQuant"} if scales else {}
    kinds = json.loads((model / DESCRIPTION).read_text())
    (model / DESCRIPTION).write_text(json.dumps({**kinds, **names, "fa_quant_type": "FAKQuant"}))
    transfer = {"kv_connector": "MooncakeConnectorV1", "kv_role": role} if role else None
    engine = {"model": str(model), "kv_cache_dtype": "int8", "kv_transfer_config": transfer}
    found = refusals(gather(engine, DEVICE, RULES["vllm_ascend_0_30"]))
    assert {refusal.code for refusal in found} == refuses


def test_keys_of_some_layers_take_half_the_bytes(models: dict[str, str], tmp_path: Path) -> None:
    model = described(models["Qwen3-0.6B"], tmp_path / "model", layers=10)
    found = from_config.find(Asked({"model": model}), OLDER)
    layouts = [layer.layout for layer in found.inputs.layers]
    dtypes = {tuple(part.dtype for part in layout.components) for layout in layouts[:10]}
    assert dtypes == {("int8", "int8")}
    assert {part.dtype for layout in layouts[10:] for part in layout.components} == {"bfloat16"}
    assert 2 * layouts[0].page_bytes == layouts[-1].page_bytes


@pytest.mark.parametrize("text", ["[1]", "{", "\udcff"])
def test_a_description_that_cannot_be_read(
    text: str, models: dict[str, str], tmp_path: Path
) -> None:
    model = described(models["Qwen3-0.6B"], tmp_path / "model")
    Path(model, DESCRIPTION).write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(RefusedError, match=DESCRIPTION):
        codes({"model": model})

# SPDX-License-Identifier: Apache-2.0
"""``--hf-overrides`` change the target that is judged, as they change the one that is served.

Each was compared with what ``EngineArgs.create_engine_config`` of both releases of vLLM says.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mkv_ascend.checks.gathering import gather
from tests.support.host_checks import DEVICE, SHARED, refused

LENGTH = {"max_position_embeddings": 4096}


def speculation(**options: Any) -> dict[str, Any]:
    return {"speculative_config": {"num_speculative_tokens": 3, **options}}


def test_windows_that_are_taken_away(models: dict[str, str]) -> None:
    """Without an override mode FULL is refused for them."""
    engine = {
        "model": models["gemma-3-1b"],
        "compilation_config": {"cudagraph_mode": "FULL"},
        **speculation(model=models["gemma-3-1b"]),
    }
    layers = gather(engine, DEVICE, SHARED).target.number("num_hidden_layers")
    assert set(refused(engine, SHARED)) == {"graph-mode"}
    without = {"layer_types": ["full_attention"] * (layers or 0)}
    assert refused({**engine, "hf_overrides": without}, SHARED) == {}


def test_vocabularies_of_one_size(models: dict[str, str]) -> None:
    """The override is the target's alone: a draft keeps its vocabulary."""
    engine = {"model": models["Llama-3.1-8B"], **speculation(model=models["llama-draft"])}
    assert refused(engine, SHARED) == {}
    smaller = {**engine, "hf_overrides": {"vocab_size": 128}}
    assert "vocabulary" in refused(smaller, SHARED)


def test_a_predictor_keeps_its_own_configuration(models: dict[str, str]) -> None:
    engine = {
        "model": models["DeepSeek-V3"],
        "tensor_parallel_size": 8,
        **speculation(method="mtp"),
    }
    asked = {**engine, "hf_overrides": {"num_nextn_predict_layers": 0}}
    assert refused(asked, SHARED) == refused(engine, SHARED) == {}


def test_parts_are_changed_field_by_field(tmp_path: Path, models: dict[str, str]) -> None:
    """vLLM writes an object over the fields of a part; a field of the whole leaves the part."""
    text = json.loads(Path(models["Llama-3.1-8B"], "config.json").read_text())
    (tmp_path / "config.json").write_text(
        json.dumps({"model_type": "of_pictures", "text_config": text, "rope": {"a": 1, "b": 2}})
    )
    asked = {"text_config": LENGTH, "vocab_size": 5, "rope": {"a": 3}}
    target = gather({"model": str(tmp_path), "hf_overrides": asked}, DEVICE, SHARED).target
    assert target.text == {**text, **LENGTH}
    assert target.values["rope"] == {"a": 3}


@pytest.mark.parametrize(
    ("rope", "is_refused"),
    [
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}}, True),
        ({"rope_parameters": {"full_attention": {"rope_type": "default"}, "other": None}}, True),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, True),
        ({"rope_scaling": {"type": "linear", "factor": 8.0}}, False),
        ({"rope_parameters": {"one": {"rope_type": "default"}, "two": {"type": "yarn"}}}, False),
        ({"rope_parameters": {"rope_type": "default", "factor": 8.0}}, False),
        ({"rope_scaling": None}, True),
    ],
    ids=str,
)
def test_positions_that_rope_leaves_as_they_are(
    rope: dict[str, Any], is_refused: bool, models: dict[str, str], tmp_path: Path
) -> None:
    """``_get_and_verify_max_len`` of vLLM multiplies positions by ``factor`` of some kinds."""
    values = json.loads(Path(models["Llama-3.1-8B"], "config.json").read_text())
    values = {**values, "rope_scaling": None, "rope_parameters": None, **LENGTH, **rope}
    (tmp_path / "config.json").write_text(json.dumps(values))
    found = refused({"model": str(tmp_path), "max_model_len": 4097}, SHARED)
    assert ("max-model-len" in found) is is_refused

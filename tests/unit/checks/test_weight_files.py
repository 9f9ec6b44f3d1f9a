# SPDX-License-Identifier: Apache-2.0
"""Files of weights that are broken, lack tensors, or have some of another shape."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mkv_ascend.adapters import installed as installed_host
from mkv_ascend.checks.judging import judge
from mkv_ascend.checks.refusal import RefusedError
from mkv_ascend.checks.weight_files import MOST_BYTES, tensors_of
from tests.support.host_checks import DEVICE, refused
from tests.support.safetensors_files import (
    NUMBERS,
    layer_shapes,
    llama_shapes,
    write_file,
    write_tensors,
)

DOWN = "model.layers.1.mlp.down_proj.weight"
EAGLE3 = {
    **NUMBERS,
    "architectures": ["LlamaForCausalLMEagle3"],
    "num_hidden_layers": 1,
    "vocab_size": 128256,
}
HEAD = {
    "fc.weight": (16, 48),
    **{f"midlayer.{name}": shape for name, shape in layer_shapes(NUMBERS)},
    **{f"midlayer.self_attn.{one}_proj.weight": (256 // n, 32) for one, n in (("q", 1), ("k", 2))},
}
QWEN3_NEXT = {"architectures": ["Qwen3NextForCausalLM"], "model_type": "qwen3_next"}


def write_model(folder: Path, shapes: dict[str, tuple[int, ...]], **config: Any) -> str:
    """A folder with a config.json, and tensors if there are any."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({**NUMBERS, **config}))
    if shapes:
        write_tensors(folder / "model.safetensors", shapes)
    return str(folder)


@pytest.fixture
def target(tmp_path: Path) -> str:
    return write_model(tmp_path / "target", llama_shapes())


def of_weights(target: str, draft: str, method: str = "draft_model", **more: Any) -> str:
    """What is said of weights; empty where nothing is."""
    asked = {"model": draft, "method": method, "num_speculative_tokens": 3}
    engine = {"model": target, "speculative_config": asked, **more}
    return refused(engine, installed_host.rules()).get("weights", "")


def without(shapes: dict[str, tuple[int, ...]], *endings: str) -> dict[str, tuple[int, ...]]:
    """The tensors whose names end in none of these."""
    return {name: shape for name, shape in shapes.items() if not name.endswith(endings)}


FUSED = without(llama_shapes(), *(f"{one}_proj.weight" for one in ("q", "k", "v", "gate", "up")))
for _layer in range(2):
    FUSED[f"model.layers.{_layer}.self_attn.qkv_proj.weight"] = (512, 16)
    FUSED[f"model.layers.{_layer}.mlp.gate_up_proj.weight"] = (48, 16)


@pytest.mark.parametrize(
    ("shapes", "says"),
    [
        (llama_shapes(), ""),
        (FUSED, ""),
        (without(llama_shapes(), DOWN), "no tensor mlp.down_proj.weight in layer 1"),
        (
            {name: shape for name, shape in llama_shapes().items() if ".layers.1." not in name},
            "no tensor of layer 1 of 2",
        ),
        ({**llama_shapes(), DOWN: (16, 23)}, f"{DOWN} has the shape [16, 23], and config.json"),
        ({**llama_shapes(), DOWN: (24, 16)}, "says [16, 24]"),
        ({**llama_shapes(), "lm_head.weight": (31, 16)}, "lm_head.weight has the shape [31, 16]"),
    ],
    ids=["whole", "fused", "a matrix", "a layer", "a length", "turned", "words"],
)
def test_a_draft_model(
    target: str, tmp_path: Path, shapes: dict[str, tuple[int, ...]], says: str
) -> None:
    said = of_weights(target, write_model(tmp_path / "draft", shapes))
    assert (says in said) if says else not said, said


def test_matrices_of_families_whose_class_is_not_known_here(target: str, tmp_path: Path) -> None:
    """The worker says it; and quantised matrices have other names."""
    lacking = without(llama_shapes(), DOWN)
    other = write_model(tmp_path / "other", lacking, model_type="olmo2")
    packed = write_model(tmp_path / "packed", lacking, quantization_config={"quant_method": "fp8"})
    assert not of_weights(target, other)
    assert not of_weights(target, packed)


@pytest.mark.parametrize(
    ("shapes", "more", "says"),
    [
        (HEAD, {}, ""),
        (without(HEAD, "fc.weight"), {}, "no tensor fc.weight"),
        (without(HEAD, "fc.weight"), {"eagle_config": {"use_aux_hidden_state": False}}, ""),
        (without(HEAD, "down_proj.weight"), {}, "no tensor mlp.down_proj.weight in layer 0"),
        ({"fc.weight": (16, 48), "norm.weight": (16,)}, {}, ""),
        ({**HEAD, "fc.weight": (17, 48)}, {}, "fc.weight has the shape [17, 48]"),
    ],
    ids=["whole", "fc", "no fc", "a matrix", "no names of layers", "width of fc"],
)
def test_a_head(
    models: dict[str, str],
    tmp_path: Path,
    shapes: dict[str, tuple[int, ...]],
    more: dict[str, Any],
    says: str,
) -> None:
    head = write_model(tmp_path / "head", shapes, **{**EAGLE3, **more})
    said = of_weights(models["Llama-3.1-8B"], head, "eagle3")
    assert (says in said) if says else not said, said


@pytest.mark.parametrize("folder", ["own", "another"])
@pytest.mark.parametrize(
    ("tensors", "refuses"),
    [(("mtp.fc.weight",), False), (("model.layers.2.x",), False), ((), True)],
)
def test_prediction_layers(
    tmp_path: Path, folder: str, tensors: tuple[str, ...], refuses: bool
) -> None:
    shapes = {**llama_shapes(), **dict.fromkeys(tensors, (1,))}
    model = write_model(tmp_path / "model", shapes, **QWEN3_NEXT)
    asked: dict[str, Any] = {"method": "mtp", "num_speculative_tokens": 1}
    if folder == "another":
        asked["model"] = model
    engine = {"model": model, "speculative_config": asked}
    said = refused(engine, installed_host.rules()).get("weights", "")
    assert ("no tensor of multi-token prediction layers" in said) == refuses


BROKEN = {
    "cut short": (json.dumps({"a": {"shape": [2], "data_offsets": [0, 4]}}), b"abc", None),
    "its header has": ("{}", b"", 1 << 62),
    "header is not JSON": ("{", b"", None),
    "no JSON object": ("[]", b"", None),
    "without a shape": (json.dumps({"a": {"shape": [-1], "data_offsets": [0, 0]}}), b"", None),
    "or a place": (json.dumps({"a": {"shape": [1], "data_offsets": [0]}}), b"", None),
    "a tensor a\\x1b without": (json.dumps({"a\x1b": 3}), b"", None),
    "is not JSON": ("[" * 200_000, b"", None),
    "is no safetensors file": ('{"a": ' + "9" * 5000 + "}", b"", None),
}


@pytest.mark.parametrize("says", BROKEN)
@pytest.mark.parametrize("of", ["target", "draft"])
def test_broken_files(says: str, of: str, target: str, tmp_path: Path) -> None:
    draft = write_model(tmp_path / "draft", llama_shapes())
    folder = Path(target if of == "target" else draft)
    header, data, length = BROKEN[says]
    write_file(folder / "model.safetensors", header, data, length)
    said = of_weights(target, draft)
    assert says in said
    assert str(folder / "model.safetensors") in said
    assert "\x1b" not in said


def test_a_cut_off_file_of_either_model(target: str, tmp_path: Path) -> None:
    draft = write_model(tmp_path / "draft", llama_shapes())
    file = Path(draft) / "model.safetensors"
    assert not of_weights(target, draft)
    file.write_bytes(file.read_bytes()[:-1])
    assert "is cut short" in of_weights(target, draft)
    assert not of_weights(target, draft, load_format="dummy")


def test_files_of_an_index(target: str, tmp_path: Path) -> None:
    """vLLM reads those that the index names, and no other."""
    draft = write_model(tmp_path / "draft", llama_shapes())
    write_file(Path(draft) / "extra.safetensors", "{")
    index = Path(draft) / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "model.safetensors"}}))
    assert not of_weights(target, draft)
    index.write_text(json.dumps({"weight_map": {"a": "model.safetensors", "b": "two\x1b"}}))
    assert f"there is no file {draft}/two\\x1b" in of_weights(target, draft)
    for broken in ("[", '{"weight_map": 3}', "[" * 200_000):
        index.write_text(broken)
        assert "extra.safetensors" in of_weights(target, draft)


def test_files_that_are_not_there(target: str, tmp_path: Path) -> None:
    """``check`` needs none, an engine does."""
    draft = write_model(tmp_path / "draft", {})
    asked = {"model": draft, "num_speculative_tokens": 3}
    engine = {"model": target, "speculative_config": asked}
    rules = installed_host.rules()
    assert "weights" not in refused(engine, rules)
    with pytest.raises(RefusedError, match="has no files of weights"):
        judge(engine, DEVICE, rules, loads_weights=True)
    judge({**engine, "load_format": "dummy"}, DEVICE, rules, loads_weights=True)


def test_headers_that_take_too_much_are_not_read(tmp_path: Path) -> None:
    """A file of terabytes may have one of gigabytes."""
    file = tmp_path / "model.safetensors"
    write_file(file, "", length=MOST_BYTES + 1)
    with file.open("ab") as grown:
        grown.truncate(MOST_BYTES << 10)
    assert tensors_of(str(tmp_path)) is None

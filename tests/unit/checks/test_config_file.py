# SPDX-License-Identifier: Apache-2.0
"""Every config.json is read, or refused in one sentence; ``explain`` never ends in a traceback."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mkv_ascend.checks.config_file import ConfigFileError, read_config_file
from mkv_ascend.checks.model_config import read_model
from mkv_ascend.checks.model_layer import ExplainError
from mkv_ascend.checks.model_work import target_work

CONFIGS = Path(__file__).resolve().parents[2] / "data" / "configs"
LLAMA = json.loads((CONFIGS / "Llama-3.1-8B" / "config.json").read_text())

scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-5, 5),
    st.sampled_from([10**30, -(10**30), 2**63, float("inf"), -0.5]),
    st.text(max_size=5),
)
values = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=6,
)


def write(folder: Path, content: str | bytes) -> Path:
    raw = content if isinstance(content, bytes) else content.encode()
    (folder / "config.json").write_bytes(raw)
    return folder


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"\xff\xfe\x00{", "is not UTF-8"),
        ("", "is not JSON"),
        ("{", "is not JSON"),
        ("[]", "is not a JSON object"),
        ("null", "is not a JSON object"),
        ("[" * 100_000, "is nested too deeply"),
        ('{"num_hidden_layers": ' + "9" * 5000 + "}", "is not JSON"),
    ],
    ids=["bytes", "empty", "cut off", "list", "null", "deep", "digits"],
)
def test_files_that_hold_no_configuration(content: str | bytes, said: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigFileError, match=said):
        read_config_file(write(tmp_path, content))


def test_no_file_and_a_folder_in_its_place(tmp_path: Path) -> None:
    with pytest.raises(ConfigFileError, match="there is no file"):
        read_config_file(tmp_path / "nowhere")
    (tmp_path / "config.json").mkdir()
    with pytest.raises(ConfigFileError, match="there is no file"):
        read_config_file(tmp_path)


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("num_attention_heads", -4, "num_attention_heads is -4; a whole number from 1"),
        ("num_attention_heads", 0, "num_attention_heads is 0"),
        ("num_hidden_layers", 0, "num_hidden_layers is 0"),
        ("num_hidden_layers", 10**9, "from 1 to 10000"),
        ("num_hidden_layers", "32", 'num_hidden_layers is "32"'),
        ("num_key_value_heads", [8, 0], r"num_key_value_heads is \[8, 0\]"),
        ("sliding_window", -1, "sliding_window is -1"),
        ("hidden_size", 4096.5, "hidden_size is 4096.5"),
        ("vocab_size", True, "vocab_size is true"),
        ("text_config", None, "text_config is null; a JSON object"),
        ("text_config", [], r"text_config is \[\]"),
        ("text_config", {"head_dim": 0}, "text_config.head_dim is 0"),
        ("architectures", "LlamaForCausalLM", "architectures is .*; a list of words"),
        ("layer_types", ["full_attention"], "layer_types has 1 entries for 32 layers"),
        ("layer_types", [1] * 32, "layer_types is .*; a list of words"),
        ("model_type", 7, "model_type is 7; a word"),
        ("quantization_config", "fp8", 'quantization_config is "fp8"; a JSON object'),
        ("torch_dtype", 16, "torch_dtype is 16; a word"),
    ],
)
def test_values_that_no_model_can_have(field: str, value: Any, said: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigFileError, match=said):
        read_config_file(write(tmp_path, json.dumps({**LLAMA, field: value})))


def test_published_files_are_read() -> None:
    assert all(read_config_file(path.parent) for path in CONFIGS.glob("*/config.json"))


@settings(
    max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    name=st.sampled_from(["Llama-3.1-8B", "gemma-3-1b", "DeepSeek-V3", "Qwen3-Next-80B-A3B"]),
    data=st.data(),
)
def test_sizes_or_a_sentence_are_found_for_any_change(
    name: str, data: st.DataObject, tmp_path: Path
) -> None:
    """One to three fields of a published file are replaced, or taken away."""
    # Where it is imported, defaults are asked for in this process.
    pytest.importorskip("transformers")
    config = json.loads((CONFIGS / name / "config.json").read_text())
    for field in data.draw(st.lists(st.sampled_from(sorted(config)), min_size=1, max_size=3)):
        if data.draw(st.booleans()):
            config.pop(field, None)
        else:
            config[field] = data.draw(values)
    folder = write(tmp_path, json.dumps(config))
    with contextlib.suppress(ExplainError):
        assert target_work(read_model(folder), 1).held_bytes

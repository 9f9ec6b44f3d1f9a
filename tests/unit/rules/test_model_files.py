# SPDX-License-Identifier: Apache-2.0
"""Files of a model's folder are read, or refused in one sentence each."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from mkv_ascend.rules.model import ConfigFileError, broken_weights, read_object
from mkv_ascend.rules.verdict import refusals
from tests.support.rule_facts import LLAMA, facts, model
from tests.support.safetensors_files import write_tensors


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"\xff\xfe\x00{", "is not UTF-8"),
        (b"", "is not JSON"),
        (b"{", "is not JSON"),
        (b"[]", "is not a JSON object"),
        (b"null", "is not a JSON object"),
        (b"[" * 100_000, "is nested too deeply"),
        (b'{"num_hidden_layers": ' + b"9" * 5000 + b"}", "is not JSON"),
        (b'{"a": ' + b" " * 200_000 + b"1}", "has 200008 bytes, which no config.json has"),
    ],
    ids=["bytes", "empty", "cut off", "list", "null", "deep", "digits", "large"],
)
def test_files_that_hold_no_object(content: bytes, said: str, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(content)
    with pytest.raises(ConfigFileError, match=said):
        read_object(path, 200_000)


def test_no_file_a_folder_in_its_place_and_a_name_of_no_file(tmp_path: Path) -> None:
    (tmp_path / "config.json").mkdir()
    for name in ("nowhere", "config.json", "x" * 5000):
        assert read_object(tmp_path / name, 1) is None


def test_an_object_is_read(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"a": [1, null]}', encoding="utf-8")
    assert read_object(tmp_path / "config.json", 100) == {"a": [1, None]}


def test_files_of_weights_that_no_loader_reads_are_named(tmp_path: Path) -> None:
    """Of a folder with an index those that it names; whole ones and other folders are silent."""
    assert list(broken_weights(tmp_path)) == list(broken_weights(tmp_path / "nowhere")) == []
    whole = write_tensors(tmp_path / "whole.safetensors", {"a": (4, 4)}).read_bytes()
    assert list(broken_weights(tmp_path)) == []
    for name, content in {"short": whole[:-8], "text": b"a page of errors", "none": b""}.items():
        (tmp_path / f"{name}.safetensors").write_bytes(content)
    found = list(broken_weights(tmp_path))
    assert [line.split()[0] for line in found] == [
        str(tmp_path / f"{name}.safetensors") for name in ("none", "short", "text")
    ]
    index = {"weight_map": {"a": "whole.safetensors", "b": "absent\x1b.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    (absent,) = broken_weights(tmp_path)
    assert absent.startswith("there is no file ")
    assert "\x1b" not in absent
    (tmp_path / "consolidated.safetensors").touch()
    assert list(broken_weights(tmp_path)) == []


def test_broken_weights_are_refused_where_they_would_be_read(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"short")
    broken = facts(target=replace(model(LLAMA), name=str(tmp_path)))
    (refusal,) = refusals(broken)
    assert refusal.code == "weights"
    assert refusals(replace(broken, load_format="dummy")) == ()

# SPDX-License-Identifier: Apache-2.0
"""Every JSON file of a model's folder is read, or refused in one sentence."""

from __future__ import annotations

from pathlib import Path

import pytest

from mkv_ascend.rules.json_file import ConfigFileError, read_object


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

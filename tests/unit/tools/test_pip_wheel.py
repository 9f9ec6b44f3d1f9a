# SPDX-License-Identifier: Apache-2.0
"""pip itself is fetched by its pinned version, and checked."""

from __future__ import annotations

import hashlib
import urllib.error
from pathlib import Path

import pytest

import pip_wheel
from step_runner import SetupError

CONTENT = b"the wheel"
NAME = "pip-26.3-py3-none-any.whl"


def index_of(digest: str) -> dict[str, bytes]:
    """A package index: address -> content."""
    links = [f"../files/other-{NAME}#sha256={'1' * 64}", f"../files/{NAME}#sha256={digest}"]
    page = "".join(f'<a href="{link}">a file</a><br/>' for link in links)
    return {
        "https://index.example/simple/pip/": f"<!DOCTYPE html><body>{page}</body>".encode(),
        f"https://index.example/simple/files/{NAME}": CONTENT,
    }


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    contents = index_of(hashlib.sha256(CONTENT).hexdigest())

    def get(address: str) -> bytes:
        if address not in contents:
            raise urllib.error.URLError(f"nothing at {address}")
        return contents[address]

    monkeypatch.setattr(pip_wheel, "_get", get)
    monkeypatch.setenv("PIP_INDEX_URL", "https://index.example/simple/")
    return contents


def test_wheel_is_fetched(index: dict[str, bytes], tmp_path: Path) -> None:
    assert pip_wheel.download("26.3", tmp_path / "cache").read_bytes() == CONTENT


def test_damaged_wheel_is_refused(index: dict[str, bytes], tmp_path: Path) -> None:
    index.update(index_of("0" * 64))
    with pytest.raises(SetupError, match="damaged"):
        pip_wheel.download("26.3", tmp_path)
    assert not list(tmp_path.iterdir())


def test_version_that_the_index_lacks(index: dict[str, bytes], tmp_path: Path) -> None:
    with pytest.raises(SetupError, match=r"cannot fetch pip-1\.0.*apt-get install python3-venv"):
        pip_wheel.download("1.0", tmp_path)


def test_version_comes_from_the_constraints() -> None:
    assert pip_wheel.pinned_version("pillow==1\npip==26.3\n") == "26.3"
    with pytest.raises(SetupError, match="make lock"):
        pip_wheel.pinned_version("pip-tools==7\n")

# SPDX-License-Identifier: Apache-2.0
"""What is said when the native device is missing or does not fit."""

from __future__ import annotations

from pathlib import Path

import pytest

from emulated_npu.device import native


@pytest.fixture
def unloaded(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setattr(native, "_load", native._load.__wrapped__)
    return monkeypatch


def test_a_missing_library_names_the_build_command(
    unloaded: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    unloaded.setattr(native, "LIBRARY", tmp_path / "_native.so")
    with pytest.raises(native.NativeDeviceMissing, match="not built") as caught:
        native.set_strict(True)
    assert "pip install --no-build-isolation -e ./emulated_npu" in str(caught.value)
    assert str(tmp_path) in str(caught.value)


def test_a_library_that_does_not_load_is_explained(
    unloaded: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    broken = tmp_path / "_native.so"
    broken.write_bytes(b"not a library")
    unloaded.setattr(native, "LIBRARY", broken)
    with pytest.raises(native.NativeDeviceMissing, match="built for another torch") as caught:
        native.set_strict(True)
    assert "pip install --no-build-isolation -e ./emulated_npu" in str(caught.value)

# SPDX-License-Identifier: Apache-2.0
"""The devices that a command would run on."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

import pytest

from mkv_ascend.commands.check_devices import devices_of


@pytest.mark.parametrize(
    ("visible", "count"), [("", 4), ("0,3", 2), ("2", 1), ("0,1,2,3,4,5", 4), (" 1, 2 ", 2)]
)
def test_as_many_devices_as_are_visible(
    visible: str, count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for index in range(4):
        (tmp_path / f"davinci{index}").touch()
    (tmp_path / "davinci_manager").touch()
    monkeypatch.setenv("ASCEND_RT_VISIBLE_DEVICES", visible)
    monkeypatch.setenv("PYTHONPATH", "")
    asked = Namespace(devices=None, memory=None)
    assert devices_of(asked, {}, tmp_path).count == count

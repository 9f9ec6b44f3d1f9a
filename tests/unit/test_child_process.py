# SPDX-License-Identifier: Apache-2.0
"""Work in a copy of the process."""

from __future__ import annotations

import os

import pytest

from mkv_ascend.child_process import in_a_copy


def test_a_copy_tells_what_it_finds_and_leaves_this_process_as_it_was() -> None:
    seen: list[int] = []

    def look() -> tuple[str, int]:
        seen.append(1)
        return "found", os.getpid()

    words, process = in_a_copy(look)
    assert words == "found"
    assert process != os.getpid()
    assert not seen


def test_a_copy_that_fails_is_an_error_here(capfd: pytest.CaptureFixture[str]) -> None:
    def look() -> None:
        raise ImportError("no such class")

    with pytest.raises(EOFError):
        in_a_copy(look)
    assert "no such class" in capfd.readouterr().err

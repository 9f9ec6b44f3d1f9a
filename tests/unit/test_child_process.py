# SPDX-License-Identifier: Apache-2.0
"""Work in a copy of the process."""

import multiprocessing
import os
import select
import signal
import time

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


def test_a_copy_leaves_no_process_that_it_has_started() -> None:
    """Whoever still runs holds the pipe open. Python drops a signal that comes during a fork."""
    reader, writer = os.pipe()

    def start() -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        multiprocessing.get_context("fork").Process(target=time.sleep, args=(300,)).start()

    in_a_copy(start)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        assert select.select([pipe], [], [], 30)[0], "it still runs"


def test_a_copy_that_fails_is_an_error_here(capfd: pytest.CaptureFixture[str]) -> None:
    def look() -> None:
        raise ImportError("no such class")

    with pytest.raises(EOFError):
        in_a_copy(look)
    assert "no such class" in capfd.readouterr().err

# SPDX-License-Identifier: Apache-2.0
"""A command whose words nobody takes ends like any other program of the shell."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

FULL = Path("/dev/full")
COMMAND = [sys.executable, "-m", "mkv_ascend.cli", "schema"]


def test_a_command_whose_reader_has_left_ends_without_a_word() -> None:
    reads, writes = os.pipe()
    os.close(reads)
    try:
        done = subprocess.run(COMMAND, stdout=writes, stderr=subprocess.PIPE, text=True)
    finally:
        os.close(writes)
    assert done.stderr == ""
    assert done.returncode == 141


@pytest.mark.skipif(not FULL.exists(), reason="Linux has a device that is always full")
def test_a_command_that_finds_no_space_says_so_in_a_line() -> None:
    with FULL.open("w") as full:
        done = subprocess.run(COMMAND, stdout=full, stderr=subprocess.PIPE, text=True)
    said = "mkv-ascend schema: what it prints or writes: No space left on device\n"
    assert (done.stderr, done.returncode) == (said, 1)

# SPDX-License-Identifier: Apache-2.0
"""A command whose reader leaves ends like any other program of the shell."""

import os
import subprocess
import sys


def test_a_command_whose_reader_has_left_ends_without_a_word() -> None:
    reads, writes = os.pipe()
    os.close(reads)
    command = [sys.executable, "-m", "mkv_ascend.cli", "schema"]
    try:
        done = subprocess.run(command, stdout=writes, stderr=subprocess.PIPE, text=True)
    finally:
        os.close(writes)
    assert done.stderr == ""
    assert done.returncode == 141

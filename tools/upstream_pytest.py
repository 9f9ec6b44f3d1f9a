# SPDX-License-Identifier: Apache-2.0
"""pytest in a folder of its own, as the program of a forked process: FOLDER, then its arguments."""

from __future__ import annotations

import os
import sys
import tempfile

import pytest

if __name__ == "__main__":
    folder = sys.argv[1]
    os.chdir(folder)
    os.environ["TMPDIR"] = folder
    tempfile.tempdir = folder
    sys.exit(pytest.main(sys.argv[2:]))

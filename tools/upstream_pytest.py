# SPDX-License-Identifier: Apache-2.0
"""pytest as the program of a forked process: a FOLDER to run in, CHECKOUT, its arguments."""

from __future__ import annotations

import os
import sys
import tempfile

import pytest

if __name__ == "__main__":
    folder, checkout = sys.argv[1:3]
    os.chdir(folder)
    os.environ["TMPDIR"] = folder
    tempfile.tempdir = folder
    # The package ``tests`` is the checkout's; vllm_ascend was imported before, and our ``tests``
    # by what started this process.
    for name in [name for name in sys.modules if name.partition(".")[0] == "tests"]:
        del sys.modules[name]
    sys.path.insert(0, checkout)
    sys.exit(pytest.main(sys.argv[3:]))

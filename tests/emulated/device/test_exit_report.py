# SPDX-License-Identifier: Apache-2.0
"""The report at the end of a process: asked for by a setting, printed by every process."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

PROGRAM = """
import multiprocessing
import torch
import torch_npu

def child():
    torch.ones(3, device="npu").tolist()

def idle():
    pass

if __name__ == "__main__":
    torch.flip(torch.empty(3, device="npu"), [0])
    for name, target in (("worker", child), ("idle", idle)):
        process = multiprocessing.get_context("METHOD").Process(target=target, name=name)
        process.start()
        process.join()
    assert process.exitcode == 0
"""


def run(method: str, tmp_path, **variables: str) -> str:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM.replace("METHOD", method))
    finished = subprocess.run(
        [sys.executable, str(path)],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=True,
    )
    return finished.stderr


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_each_process_reports_its_own_counts(method: str, tmp_path) -> None:
    errors = run(method, tmp_path, EMULATED_NPU_COUNTERS="1")
    reports = [line for line in errors.splitlines() if " launches, " in line]
    assert len(reports) == 2, errors
    assert reports[0].startswith("worker (process ")
    assert ": emulated NPU: 2 launches, 1 host reads, 0 bytes to device, 12 bytes" in reports[0]
    assert reports[1].startswith("MainProcess (process ")
    assert ": emulated NPU: 1 launches, 0 host reads," in reports[1]
    assert "program.py:7: 1 (12 bytes)" in errors
    assert "aten::flip: 1" in errors


def test_nothing_is_printed_unasked(tmp_path) -> None:
    assert " launches, " not in run("fork", tmp_path, EMULATED_NPU_COUNTERS="0")

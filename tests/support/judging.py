# SPDX-License-Identifier: Apache-2.0
"""``mkv-ascend check`` in a test process: each question is answered by a fork of one process.

A process that imports vLLM for each of hundreds of questions takes ten seconds for every one.
"""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from mkv_ascend.child_process import safe_environment
from mkv_ascend.commands import host_process
from tests.support.program_starter import ProgramStarter


class Judges:
    """Stands for ``child_process.run_module``; keeps a process for each environment."""

    def __init__(self) -> None:
        self._starters: dict[frozenset[tuple[str, str]], ProgramStarter] = {}

    def run_module(
        self, module: str, question: str, environment: Mapping[str, str], seconds: float
    ) -> subprocess.CompletedProcess[str]:
        """As it has it, but in the current folder."""
        variables = safe_environment(environment)
        variables.pop("PYTEST_CURRENT_TEST", None)
        key = frozenset(variables.items())
        if key not in self._starters:
            self._starters[key] = ProgramStarter(variables)
        with tempfile.TemporaryDirectory() as folder:
            given, output, errors = (Path(folder, name) for name in ("given", "output", "errors"))
            given.write_text(question, encoding="utf-8")
            status = self._starters[key].run(module, (), output, errors, seconds, given)
            if status is None:
                raise subprocess.TimeoutExpired(module, seconds)
            said, complained = (file.read_text(errors="replace") for file in (output, errors))
        return subprocess.CompletedProcess(module, status, said, complained)

    def stop(self) -> None:
        """End the processes."""
        for starter in self._starters.values():
            starter.stop()


@pytest.fixture(scope="module")
def forked_judges() -> Iterator[None]:
    """Questions of commands to vLLM are answered by forks, in all tests of the module."""
    judges = Judges()
    with pytest.MonkeyPatch.context() as patch:
        # Unit tests leave all plugins out, of which the platform is one.
        patch.delenv("VLLM_PLUGINS", raising=False)
        patch.setattr(host_process, "run_module", judges.run_module)
        yield
    judges.stop()

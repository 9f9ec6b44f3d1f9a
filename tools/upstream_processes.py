# SPDX-License-Identifier: Apache-2.0
"""The processes that run vllm-ascend's own tests, for ``tools/upstream_tests.py``.

Each file has a process of its own, forked from one that has imported vLLM and vllm-ascend: tests
leave mocks behind in ``sys.modules``, and imports take longer than most tests.
"""

from __future__ import annotations

import dataclasses
import os
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import upstream_models
from emulated_npu.launch import EmulatedProcess
from emulated_npu.settings import EmulatorSettings

TOOLS = Path(__file__).resolve().parent
# Our own `tests`, which is no part of what is installed.
sys.path.insert(0, str(TOOLS.parent))

from tests.support.program_starter import ProgramStarter  # noqa: E402
from tests.support.programs import with_repository  # noqa: E402

PROGRAM = TOOLS / "upstream_pytest.py"

PASSED, SKIPPED, FAILED = "passed", "skipped", "failed"

IMPORTS = ("pytest_mock", "pytest_timeout")
"""What the tests and ``pytest_arguments`` need beside the packages of this project."""

SECONDS_OF_A_TEST = 300
TESTS_OF_A_FILE = 6
"""A file gets the longest time of so many tests: most take less than a second."""
DEVICES = 2
"""As many as the tests for two cards ask for."""
MEMORY = 8 * 2**30
"""Bytes of each device; some tests make a cache of 4 GiB."""


@dataclass(frozen=True)
class Outcome:
    """How one test of ``file`` (its path in the checkout) ended, and with which error."""

    file: str
    test: str
    outcome: str
    error: str = ""


@dataclass(frozen=True)
class Setting:
    """What all processes share: the checkout, whose platform they test, seconds for a test."""

    repository: Path
    stock: bool = False
    seconds: int = SECONDS_OF_A_TEST


def files_of(repository: Path, suite: str, only: Sequence[str]) -> list[str]:
    """The files of ``suite``, as paths in the checkout, that hold one of ``only``."""
    if suite == "operators":
        found = (repository / "tests/e2e/nightly").rglob("test_*.py")
        paths = [path for path in found if "ops" in path.parts]
    else:
        paths = list((repository / "tests/ut").rglob("test_*.py"))
    names = sorted(path.relative_to(repository).as_posix() for path in paths)
    return [name for name in names if not only or any(part in name for part in only)]


def pytest_arguments(file: str, setting: Setting, report: Path) -> list[str]:
    """The arguments of pytest for one file."""
    conftests = "tests/ut" if file.startswith("tests/ut/") else "tests/e2e/nightly"
    return [
        *("-p", "upstream_seat", "-p", "no:cacheprovider"),
        *("-q", "--tb=short", f"--rootdir={setting.repository}"),
        # Other conftest files import what operator tests do not need.
        f"--confcutdir={setting.repository / conftests}",
        f"--timeout={setting.seconds}",
        f"--junitxml={report}",
        str(setting.repository / file),
    ]


def environment(stand_ins: Path, stock: bool) -> dict[str, str]:
    """Emulated, strict, with Triton, a device reported; nothing is written beside the tests.

    Nothing is asked of a hub: what it answers is no part of the checkout, and without a network
    each question takes seconds.
    """
    settings = dataclasses.replace(
        EmulatorSettings.from_environment(),
        devices=DEVICES,
        memory_bytes=MEMORY,
        strict=True,
        has_triton=True,
    )
    path = os.pathsep.join([str(TOOLS), *filter(None, [os.environ.get("PYTHONPATH")])])
    base = {
        **os.environ,
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONPATH": path,
    }
    made = EmulatedProcess((sys.executable,), settings).environment(base)
    made["PATH"] = f"{stand_ins}{os.pathsep}{made['PATH']}"
    made = with_repository(made)
    return {**made, "VLLM_PLUGINS": "ascend"} if stock else made


def make_stand_ins(folder: Path) -> None:
    """``npu-smi``, by whose exit status the unit tests tell whether there is a device.

    Without one they put mocks in the place of torch_npu.
    """
    program = folder / "npu-smi"
    program.write_text("#!/bin/sh\nexit 0\n")
    program.chmod(0o755)


class Runner:
    """Runs files one after another; with ``with``, since a process stands behind it."""

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self._folder = tempfile.TemporaryDirectory(prefix="upstream")
        make_stand_ins(Path(self._folder.name))
        self._starter = ProgramStarter(environment(Path(self._folder.name), setting.stock))

    def __enter__(self) -> Runner:
        return self

    def __exit__(self, *error: object) -> None:
        self._starter.stop()
        self._folder.cleanup()

    def run(self, file: str) -> list[Outcome]:
        """How the tests of ``file`` ended. A process that left no report has failed."""
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as scratch:
            report, log = Path(scratch, "report.xml"), Path(scratch, "log.txt")
            upstream_models.write(Path(scratch))
            checkout = str(self._setting.repository)
            arguments = [scratch, checkout, *pytest_arguments(file, self._setting, report)]
            seconds = self._setting.seconds * TESTS_OF_A_FILE
            status = self._starter.run(str(PROGRAM), arguments, log, log, seconds)
            if status is None:
                return [Outcome(file, file, FAILED, f"no end within {seconds} s")]
            if not report.is_file():
                last_words = log.read_text(errors="replace")[-600:]
                return [Outcome(file, file, FAILED, f"ended with {status}: {last_words}")]
            return list(cases(report, file))


def cases(report: Path, file: str) -> Iterator[Outcome]:
    """The outcome of each test in pytest's report of ``file``."""
    for case in ElementTree.parse(report).iter("testcase"):
        # The owner holds the file's name; where the file could not be imported, the name does.
        test = f"{case.get('classname', '')}::{case.get('name', '')}"
        bad = [child for child in case if child.tag in ("failure", "error")]
        if bad:
            error = f"{bad[0].get('message', '')}\n{bad[0].text or ''}"
            yield Outcome(file, test, FAILED, error)
        elif (skipped := case.find("skipped")) is not None:
            yield Outcome(file, test, SKIPPED, skipped.get("message", ""))
        else:
            yield Outcome(file, test, PASSED)

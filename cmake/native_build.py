# SPDX-License-Identifier: Apache-2.0
"""What the ``setup.py`` of both distributions share: running CMake, and saying what went wrong."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path

from setuptools.command.build import build
from setuptools.command.build_ext import build_ext
from setuptools.errors import PlatformError

SHOWN_ERRORS, SHOWN_CHARACTERS = 8, 400


def find_tool(name: str) -> str | None:
    """A build tool: beside the running Python (pip's cmake and ninja), else on the path."""
    scripts = sysconfig.get_path("scripts")
    return shutil.which(name, path=scripts) or shutil.which(name)


def needed_tool(name: str, how: str) -> str:
    tool = find_tool(name)
    if tool is None:
        raise PlatformError(f"mkv_ascend: {name} is missing. {how}, and build again")
    return tool


def first_errors(log: Path) -> str:
    """The lines of a build's output that say what is wrong, else its last ones."""
    lines = log.read_text(errors="replace").splitlines()
    found = [
        line.strip()
        for line in lines
        if re.search(r"\berror:|^error\b|\[ERROR\]|CMake Error: |No space left", line)
    ]
    for place, line in enumerate(lines):
        if line.startswith("CMake Error at"):
            block = [text.strip() for text in lines[place + 1 : place + 9]]
            found.append(" ".join(text for text in block if text))
    shown = list(dict.fromkeys(found))[:SHOWN_ERRORS] or lines[-SHOWN_ERRORS:]
    return "\n".join(line[:SHOWN_CHARACTERS] for line in shown)


def choose_ninja() -> list[str]:
    """CMake's options for Ninja where there is one: it is quicker."""
    ninja = find_tool("ninja")
    return [] if ninja is None else ["-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={ninja}"]


class CMakeBuild(build_ext):
    """Builds all extensions in one CMake project. No Python headers are needed.

    A subclass says where (``root``), who (``project``, for messages) and how to do without
    (``way_out``).
    """

    root: Path
    # Not `package`: build_ext of setuptools has an attribute of that name, and empties it.
    project: str
    way_out = ""
    first_errors = staticmethod(first_errors)

    def say(self, text: str) -> None:
        print(f"{self.project}: {text}", flush=True)

    def build_with_cmake(self, kind: str, options: Sequence[str]) -> None:
        """Configure and build in a folder for ``kind`` of build, and place the libraries.

        A folder of CMake's keeps its generator for good, hence one for each kind.
        """
        cmake = needed_tool("cmake", "Run `pip install cmake` (or `apt-get install cmake`)")
        folder = self.root / "build" / f"{kind}-{sysconfig.get_python_version()}"
        folder.mkdir(parents=True, exist_ok=True)
        log = folder / "build.log"
        log.unlink(missing_ok=True)
        python = f"-DPython_EXECUTABLE={sys.executable}"
        self._run([cmake, "-S", self.root, "-B", folder, python, *options], log)
        self._run([cmake, "--build", folder, "--parallel", str(os.cpu_count() or 1)], log)
        for extension in self.extensions:
            self._place(folder, extension.name)

    def _run(self, command: Sequence[str | Path], log: Path) -> None:
        words = [str(word) for word in command]
        self.say(f"running {' '.join(words[:2])} ..., all output in {log}")
        with log.open("a") as output:
            print(*words, file=output, flush=True)
            finished = subprocess.run(words, stdout=output, stderr=subprocess.STDOUT, check=False)
        if finished.returncode != 0:
            # Last in pip's output, so that it is seen; the thousands of other lines are in the log.
            raise PlatformError(
                f"{self.project}: the native build failed (exit status {finished.returncode} of "
                f"`{' '.join(words[:2])} ...`):\n{self.first_errors(log)}\n"
                f"All output: {log}. The build needs g++ 12 or later and about 2 GB of memory per "
                f"core. {self.way_out}".rstrip()
            )

    def _place(self, build_folder: Path, extension_name: str) -> None:
        """Put the built library where setuptools expects it, in one step: a running process may
        have the old one mapped."""
        target = Path(self.get_ext_fullpath(extension_name))
        target.parent.mkdir(parents=True, exist_ok=True)
        beside = target.with_suffix(".new")
        shutil.copyfile(build_folder / "native" / target.name, beside)
        os.replace(beside, target)
        self.say(f"built {target}")

    def get_ext_filename(self, fullname: str) -> str:
        # Not Python extension modules: torch loads them. Hence no Python version in the name.
        return f"{fullname.replace('.', os.sep)}.so"


class Build(build):
    """Native parts first: a message of theirs is not lost below hundreds of lines about copies."""

    sub_commands = sorted(build.sub_commands, key=lambda command: command[0] != "build_ext")

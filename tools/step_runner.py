# SPDX-License-Identifier: Apache-2.0
"""Run one long command with visible progress, and say in one line why it failed.

Standard library only, and readable by Python 3.9: it runs before anything is installed.
"""

from __future__ import annotations

import re
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO

HEARTBEAT_SECONDS = 15.0
SPINNER_SECONDS = 0.2
SPINNER = "|/-\\"
STATUS_WIDTH = 100


class SetupError(Exception):
    """Set-up cannot go on. The message is one line that says what to do."""


# What is looked for in the output of a failed command, and what to tell the user. The first match
# wins, so the more specific come first.
_DIAGNOSES: list[tuple[str, str]] = [
    (
        r"No space left on device|Disk quota exceeded",
        "the disk is full: free some space (a CPU set-up takes about 4 GB), then run it again",
    ),
    (
        r"Temporary failure in name resolution|Name or service not known|Failed to establish a new "
        r"connection|Connection refused|Network is unreachable|ConnectTimeout|ReadTimeout|"
        r"Read timed out|Connection broken|IncompleteRead|Max retries exceeded|ProxyError|"
        r"SSLError|CERTIFICATE_VERIFY_FAILED|HTTP error [45]\d\d|[45]\d\d (?:Client|Server) Error",
        "a download failed: check the network, the proxy and PIP_INDEX_URL, then run it again "
        "(finished steps are kept)",
    ),
    (
        r"No matching distribution found for (?P<what>\S+)",
        "the package index has no {what} for this Python and machine: check PIP_INDEX_URL",
    ),
    (
        r"MemoryError|Killed signal|Cannot allocate memory",
        "memory ran out: close other programs or set MAX_JOBS=1, then run it again",
    ),
    (
        r"(?:fatal )?error: .*|CMake Error.*",
        "the native parts do not compile (`{text}`)",
    ),
]


def diagnose(output: str) -> str:
    """One line on what to do about a command that failed with ``output``."""
    for pattern, advice in _DIAGNOSES:
        match = re.search(pattern, output)
        if match is not None:
            named = {name: value or "" for name, value in match.groupdict().items()}
            return advice.format(text=match.group(0).strip()[:120], **named)
    last = [line.strip() for line in output.splitlines() if line.strip()]
    return f"`{last[-1][:160]}`" if last else "it printed nothing"


def summarise(line: str) -> str | None:
    """A short status for one line of a command's output, or None if it says nothing new."""
    text = line.strip()
    match = re.match(r"(Collecting|Downloading|Building wheels? for|Installing) (.+)", text)
    if match is None:
        # CMake and ninja print "[3/12] Building ..." while they compile.
        return text[:STATUS_WIDTH] if re.match(r"\[\d+/\d+\]", text) else None
    what = match.group(2).split(" (from")[0].split(";")[0]
    if match.group(1) == "Downloading":
        what = what.rsplit("/", 1)[-1]
    if match.group(1) == "Installing" and "collected packages" in what:
        what = "what was downloaded"
    return f"{match.group(1)} {what}"[:STATUS_WIDTH]


class Status:
    """A status line: rewritten in place on a terminal, a line now and then elsewhere."""

    def __init__(self, stream: IO[str]) -> None:
        self.stream = stream
        self.text = ""
        self.started = time.monotonic()
        self._terminal = stream.isatty()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Status:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stopped.set()
        self._thread.join()
        if self._terminal:
            self.stream.write("\r\033[K")
            self.stream.flush()

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self.started

    def _run(self) -> None:
        period = SPINNER_SECONDS if self._terminal else HEARTBEAT_SECONDS
        turn = 0
        while not self._stopped.wait(period):
            turn += 1
            line = f"{self.elapsed:5.0f} s  {self.text}"
            if self._terminal:
                self.stream.write(f"\r\033[K      {SPINNER[turn % len(SPINNER)]} {line}"[:120])
            else:
                self.stream.write(f"        {line}\n")
            self.stream.flush()


def run_logged(
    command: Sequence[str],
    environment: dict[str, str],
    directory: Path,
    log: Path,
    stream: IO[str] | None = None,
) -> float:
    """Run ``command``, its output to the end of ``log``; return the seconds it took.

    Raises SetupError, with the diagnosis and the place of the log, when it cannot be started or
    exits with another status than 0.
    """
    lines: list[str] = []
    with log.open("a", encoding="utf-8") as record, Status(stream or sys.stdout) as status:
        record.write(f"\n$ {' '.join(command)}\n")
        record.flush()
        try:
            process = subprocess.Popen(
                list(command),
                cwd=str(directory),
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                encoding="utf-8",
                errors="replace",
            )
        except OSError as error:
            raise SetupError(f"cannot start {command[0]}: {error}") from error
        assert process.stdout is not None
        try:
            for line in process.stdout:
                record.write(line)
                lines.append(line)
                status.text = summarise(line) or status.text
        except BaseException:
            process.terminate()
            process.wait()
            raise
        code = process.wait()
    if code != 0:
        raise SetupError(f"{diagnose(''.join(lines[-400:]))}; the whole output is in {log}")
    return status.elapsed

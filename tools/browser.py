# SPDX-License-Identifier: Apache-2.0
"""Install Chromium where continuous integration runs as root on a Debian: quietly, once.

The page of ``mkv-ascend explain`` is tested in a headless Chromium. Where there is none and this
cannot install it, the reason goes to ``.cache/browser.txt``, which those tests say when they are
skipped. Nothing here fails: a machine without a browser runs everything else.

    python3 tools/browser.py
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
REASON = Path(".cache") / "browser.txt"
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
SECONDS = 180
# A mirror that does not answer must not hold up the checks.
NETWORK = ("-o", "Acquire::Retries=1", "-o", "Acquire::http::Timeout=20")
COMMANDS = (
    ("apt-get", "-qq", *NETWORK, "update"),
    ("apt-get", "-qq", *NETWORK, "install", "-y", "--no-install-recommends", "chromium"),
)


def find() -> str | None:
    """The first browser on the PATH, None if there is none."""
    return next((path for path in map(shutil.which, NAMES) if path), None)


def install() -> str | None:
    """Install Chromium; None when it is there then, else why it is not."""
    if os.geteuid() != 0:
        return "not root: apt-get install chromium"
    if not shutil.which("apt-get"):
        return "no apt-get here: install chromium"
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    end = time.monotonic() + SECONDS
    for command in COMMANDS:
        if reason := _failure(command, environment, end - time.monotonic()):
            return reason
    return None if find() else "apt-get installed a package chromium without a browser in it"


def _failure(command: tuple[str, ...], environment: Mapping[str, str], seconds: float) -> str:
    """What went wrong with one command; empty when nothing did."""
    try:
        done = subprocess.run(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            check=False,
            timeout=max(1.0, seconds),
        )
    except subprocess.TimeoutExpired:
        return f"`{' '.join(command)}` had no result within {SECONDS} s"
    except OSError as error:
        return f"`{' '.join(command)}` could not be started: {error}"
    if done.returncode == 0:
        return ""
    words = done.stdout.strip().splitlines()[-1:] or ["nothing"]
    return f"`{' '.join(command)}` ended with status {done.returncode}; it said: {words[0]}"


def main(root: Path = ROOT) -> int:
    """Make sure of a browser, or write down why there is none; always 0."""
    note = root / REASON
    note.unlink(missing_ok=True)
    if find():
        return 0
    print("Chromium for the tests of explain's page", flush=True)
    started = time.monotonic()
    reason = install()
    if reason is None:
        print(f"        done in {time.monotonic() - started:.0f} s", flush=True)
        return 0
    note.parent.mkdir(exist_ok=True)
    note.write_text(reason + "\n", encoding="utf-8")
    print(f"        not installed, its tests will be skipped: {reason}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

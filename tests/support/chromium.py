# SPDX-License-Identifier: Apache-2.0
"""Pages in a headless browser, where one is there."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

import browser
from tests.support.programs import HANG_SECONDS

CHROMIUM = browser.find()


def why_absent() -> str:
    """What the set-up of a browser said, where it was tried."""
    note = browser.ROOT / browser.REASON
    said = note.read_text(encoding="utf-8").strip() if note.is_file() else "run tools/browser.py"
    return f"none of {', '.join(browser.NAMES)} on the PATH: {said}"


def run_chromium(page: Path, folder: Path, *options: str, query: str = "") -> str:
    """Show ``page`` without a network and without what a browser does on its own."""
    assert CHROMIUM is not None
    command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic"]
    command += ["--no-first-run", "--disable-background-networking", "--disable-component-update"]
    command += ["--disable-sync", "--host-resolver-rules=MAP * ~NOTFOUND", "--hide-scrollbars"]
    command += [f"--user-data-dir={folder / 'profile'}", "--window-size=1240,1500"]
    done = subprocess.run(
        [*command, *options, page.as_uri() + query],
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason=why_absent())

# SPDX-License-Identifier: Apache-2.0
"""The copy of the clone in which faults are planted, one at a time.

Engines of tests are processes of their own, and find the package where the tests lie. So what tests
read is copied, and the rest of the clone is linked beside it.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

from fault import Fault

COPIED = ("mkv_ascend", "tests", "tools", "benchmarks", "reliability", "docs")
LEFT_OUT = (".cache", ".git", "build")
"""Neither copied nor linked."""
SITE = "site/sitecustomize.py"
"""Python imports a module of this name at its start, where its folder is on the path."""
PLANTED, ERRORS = "planted.json", "errors.txt"

_times = itertools.count(int(time.time()))


def make_workplace(root: Path, folder: Path) -> Path:
    """Bring the copy in ``folder`` up to date with the clone; where it lies."""
    place = folder / "clone"
    place.mkdir(parents=True, exist_ok=True)
    (folder / PLANTED).unlink(missing_ok=True)
    site = folder / SITE
    site.parent.mkdir(exist_ok=True)
    write(site, Path(__file__).with_name("fault_functions.py").read_bytes())
    for name in COPIED:
        _copy(root / name, place / name)
    for path in root.iterdir():
        link = place / path.name
        # Tests may have made a folder of this name in the copy before there was one in the clone.
        if path.name not in (*COPIED, *LEFT_OUT) and not os.path.lexists(link):
            link.symlink_to(path)
    return place


def _copy(source: Path, copy: Path) -> None:
    """Copy what differs, and remove what is gone; compiled files stay."""
    copy.mkdir(exist_ok=True)
    names = {path.name for path in source.iterdir()} | {"__pycache__"}
    for path in copy.iterdir():
        if path.name not in names:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    for path in source.iterdir():
        other = copy / path.name
        if path.is_dir():
            if path.name != "__pycache__":
                _copy(path, other)
        elif not other.is_file() or other.read_bytes() != path.read_bytes():
            write(other, path.read_bytes())


def write(path: Path, content: bytes) -> None:
    """Write a file with a time of its own: Python tells compiled files by size and second."""
    path.write_bytes(content)
    now = next(_times)
    os.utime(path, (now, now))


@contextlib.contextmanager
def planted(fault: Fault, place: Path) -> Iterator[None]:
    """The fault is in the copy, and in each process that begins meanwhile."""
    folder, path = place.parent, place / fault.path
    before = path.read_text("utf-8")
    write(path, fault.planted(before).encode())
    order = {"name": fault.name, "file": str(path), "before": before}
    (folder / PLANTED).write_text(json.dumps(order), encoding="utf-8")
    try:
        yield
    finally:
        (folder / PLANTED).unlink()
        write(path, before.encode())

# SPDX-License-Identifier: Apache-2.0
"""Fetch pip itself, for machines whose Python comes without it (Debian without python3-venv).

Standard library only. The index is asked by its JSON form (PEP 691), and the file is checked
against the digest that the index gives.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

from step_runner import SetupError

DEFAULT_INDEX = "https://pypi.org/simple"
JSON_FORM = "application/vnd.pypi.simple.v1+json"
TIMEOUT_SECONDS = 60
ADVICE = "apt-get install python3-venv, then run it again"


def pinned_version(constraints: str) -> str:
    """The version of pip that the text of a constraints file pins."""
    match = re.search(r"^pip==(\S+)", constraints, flags=re.MULTILINE)
    if match is None:
        raise SetupError("requirements/constraints.txt does not pin pip: run `make lock`")
    return match.group(1)


def _get(address: str, accept: str = "*/*") -> bytes:
    request = urllib.request.Request(address, headers={"Accept": accept})
    with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS) as answer:
        content: bytes = answer.read()
    return content


def download(version: str, folder: Path) -> Path:
    """Fetch pip's wheel into ``folder`` and return its path; SetupError says what else to do."""
    name = f"pip-{version}-py3-none-any.whl"
    index = os.environ.get("PIP_INDEX_URL", DEFAULT_INDEX).rstrip("/") + "/pip/"
    try:
        files = json.loads(_get(index, JSON_FORM))["files"]
        entry = next(entry for entry in files if entry["filename"] == name)
        content = _get(urllib.parse.urljoin(index, entry["url"]))
    except (urllib.error.URLError, OSError, ValueError, KeyError, StopIteration) as error:
        raise SetupError(f"cannot fetch {name} from {index} ({error!r}): {ADVICE}") from error
    if hashlib.sha256(content).hexdigest() != entry["hashes"]["sha256"]:
        raise SetupError(f"{name} from {index} is damaged: run it again, or {ADVICE}")
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_bytes(content)
    return path

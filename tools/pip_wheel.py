# SPDX-License-Identifier: Apache-2.0
"""Fetch pip itself, for machines whose Python comes without it (Debian without python3-venv).

Standard library only. The index is read as HTML, the form that every mirror has (PEP 503), and the
file is checked against the digest in its link.
"""

from __future__ import annotations

import hashlib
import os
import re
import urllib.error
import urllib.parse
import urllib.request
from html.parser import HTMLParser
from pathlib import Path

from step_runner import SetupError

DEFAULT_INDEX = "https://pypi.org/simple"
TIMEOUT_SECONDS = 60
ADVICE = "apt-get install python3-venv, then run it again"


class _Links(HTMLParser):
    """Addresses of all links of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "a":
            self.addresses += [value for name, value in attrs if name == "href" and value]


def pinned_version(constraints: str) -> str:
    """The version of pip that the text of a constraints file pins."""
    match = re.search(r"^pip==(\S+)", constraints, flags=re.MULTILINE)
    if match is None:
        raise SetupError("requirements/constraints.txt does not pin pip: run `make lock`")
    return match.group(1)


def find_link(page: str, name: str) -> tuple[str, str]:
    """Address and SHA-256 of the file ``name`` on a page of an index; LookupError if absent."""
    links = _Links()
    links.feed(page)
    for link in links.addresses:
        address, fragment = urllib.parse.urldefrag(link)
        digest = urllib.parse.parse_qs(fragment).get("sha256")
        if address.rpartition("/")[2] == name and digest:
            return address, digest[0]
    raise LookupError(f"no link to {name}")


def _get(address: str) -> bytes:
    request = urllib.request.Request(address, headers={"Accept": "text/html, */*"})
    with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS) as answer:
        content: bytes = answer.read()
    return content


def download(version: str, folder: Path) -> Path:
    """Fetch pip's wheel into ``folder`` and return its path; SetupError says what else to do."""
    name = f"pip-{version}-py3-none-any.whl"
    index = os.environ.get("PIP_INDEX_URL", DEFAULT_INDEX).rstrip("/") + "/pip/"
    try:
        address, digest = find_link(_get(index).decode("utf-8", "replace"), name)
        content = _get(urllib.parse.urljoin(index, address))
    except (urllib.error.URLError, OSError, LookupError) as error:
        raise SetupError(f"cannot fetch {name} from {index} ({error}): {ADVICE}") from error
    if hashlib.sha256(content).hexdigest() != digest:
        raise SetupError(f"{name} from {index} is damaged: run it again, or {ADVICE}")
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_bytes(content)
    return path

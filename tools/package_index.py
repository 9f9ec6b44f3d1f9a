# SPDX-License-Identifier: Apache-2.0
"""pip's settings for uv, which reads none of them: index, certificate, proxy.

Standard library only, and readable by Python 3.9: it runs before anything is installed.
"""

from __future__ import annotations

import ast
import os
import subprocess

# What pip calls it -> what uv reads. All lists are separated by white space in both.
_NAMES = {
    "index-url": "UV_DEFAULT_INDEX",
    "extra-index-url": "UV_INDEX",
    "find-links": "UV_FIND_LINKS",
    "no-index": "UV_NO_INDEX",
    "trusted-host": "UV_INSECURE_HOST",
    "cert": "SSL_CERT_FILE",
    "proxy": "ALL_PROXY",
    "default-timeout": "UV_HTTP_TIMEOUT",
    "timeout": "UV_HTTP_TIMEOUT",
}
# The later of two settings with one name wins, as in pip.
_PRECEDENCE = ("global", "install", ":env:")


def uv_settings(listing: str) -> dict[str, str]:
    """Variables for uv from what ``pip config list`` prints.

    pip takes the newest version of all its indexes, so uv is told to do the same.
    """
    found: dict[str, tuple[int, str]] = {}
    for line in listing.splitlines():
        place, equals, value = line.partition("=")
        section, _, name = place.strip().rpartition(".")
        if not equals or name not in _NAMES or section not in _PRECEDENCE:
            continue
        rank = _PRECEDENCE.index(section)
        variable = _NAMES[name]
        if variable not in found or rank >= found[variable][0]:
            found[variable] = (rank, " ".join(_text(value).split()))
    settings = {variable: value for variable, (_, value) in found.items()}
    if "UV_FIND_LINKS" in settings:
        # The one list that uv separates by commas.
        settings["UV_FIND_LINKS"] = settings["UV_FIND_LINKS"].replace(" ", ",")
    return {"UV_INDEX_STRATEGY": "unsafe-best-match", **settings}


def _text(value: str) -> str:
    try:
        return str(ast.literal_eval(value.strip()))
    except (ValueError, SyntaxError):
        return value


def uv_environment(python: str, environment: dict[str, str]) -> dict[str, str]:
    """``environment`` with pip's settings in uv's words; what is set for uv itself comes first."""
    try:
        listing = subprocess.run(
            [python, "-m", "pip", "config", "list"],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
            check=True,
        ).stdout.decode("utf-8", "replace")
    except (OSError, subprocess.CalledProcessError):
        listing = ""
    own = {name: value for name, value in os.environ.items() if name.startswith("UV_")}
    return {**environment, **uv_settings(listing), **own}

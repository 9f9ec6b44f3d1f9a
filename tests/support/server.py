# SPDX-License-Identifier: Apache-2.0
"""A ``vllm serve`` process that is healthy."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path

from mkv_ascend.commands.demo_server import START_SECONDS, Server, started, wait_until_healthy


@contextlib.contextmanager
def serve(
    arguments: list[str],
    log: Path,
    environment: Mapping[str, str] | None = None,
    start_seconds: float = START_SECONDS,
) -> Iterator[Server]:
    """``started``, once it is healthy; ServerFailedError where it is not in ``start_seconds``."""
    with started(arguments, log, environment) as server:
        wait_until_healthy(server, start_seconds=start_seconds)
        yield server

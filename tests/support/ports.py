# SPDX-License-Identifier: Apache-2.0
"""Ports for programs whose listeners take no port that somebody holds for them."""

from __future__ import annotations

from mkv_ascend.commands.demo_server import reserved_port


def free_port() -> int:
    """A TCP port of the loopback interface that nothing listens on now."""
    with reserved_port() as holder:
        port: int = holder.getsockname()[1]
        return port

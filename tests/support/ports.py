# SPDX-License-Identifier: Apache-2.0
"""Ports for programs whose listeners take no port that somebody holds for them."""

from __future__ import annotations

import random
import socket

FIRST, LAST = 20000, 32000
"""Below those that a system gives out by itself (Linux: 32768 and up). Seconds lie between the
choice and the program's listener, and a process beside it could be given one of those."""
MOST_TRIES = 100


def free_port() -> int:
    """A TCP port of the loopback interface that nothing listens on now.

    Raises:
        OSError: ``MOST_TRIES`` ports have listeners.
    """
    draw = random.SystemRandom()
    for _ in range(MOST_TRIES):
        port = draw.randint(FIRST, LAST)
        with socket.socket() as holder:
            try:
                holder.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise OSError(f"no free port found between {FIRST} and {LAST}")

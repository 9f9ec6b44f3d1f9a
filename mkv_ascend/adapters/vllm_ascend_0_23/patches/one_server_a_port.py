# SPDX-License-Identifier: Apache-2.0
"""A port on which another server listens is refused, as vLLM 0.30.0 does by itself."""

from __future__ import annotations

import errno
import socket
from typing import Any

from mkv_ascend.adapters.patching import patch
from mkv_ascend.adapters.refusal import StartUpRefused


@patch(
    name="one server a port",
    target="vllm.entrypoints.openai.api_server:create_server_socket",
)
def refuse_shared_port(original: Any, addr: tuple[str, int]) -> socket.socket:
    """The server's socket, which shares its port with none.

    Raises:
        StartUpRefused: another socket listens there.
    """
    made: socket.socket = original(addr)
    # Of two servers that start at the same time, the later one fails when it begins to listen.
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 0)
    with socket.socket(made.family, socket.SOCK_STREAM) as tried:
        # So that sockets that listen count alone, not connections that have ended.
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            tried.bind(addr)
        except OSError as error:
            made.close()
            if error.errno != errno.EADDRINUSE:
                raise
            raise StartUpRefused(
                f"--port is {addr[1]}, on which another server listens. Possible: a port of its "
                "own for each server. Change: choose another --port, or end the other server."
            ) from None
    return made

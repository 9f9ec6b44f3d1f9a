# SPDX-License-Identifier: Apache-2.0
"""A port of 0.23.0's server, with sockets of the kernel's own."""

from __future__ import annotations

import contextlib
import socket

import pytest
from vllm.entrypoints.openai.api_server import create_server_socket

from mkv_ascend.adapters.refusal import StartUpRefused
from tests.support import hosts

hosts.skip_module_unless("vllm_ascend_0_23", "vLLM 0.30.0 shares no port")

(made_by_us,) = hosts.module("patches.start_up").refuse_shared_port.functions.values()


def ours(addr: tuple[str, int]) -> socket.socket:
    """The socket that a server gets; the caller closes it."""
    made: socket.socket = made_by_us(create_server_socket, addr)
    return made


def test_a_port_on_which_a_server_listens_is_refused() -> None:
    with create_server_socket(("127.0.0.1", 0)) as first:
        first.listen()
        with pytest.raises(StartUpRefused, match=r"another server.*Possible: .*Change: "):
            ours(first.getsockname())


def test_of_two_servers_that_begin_at_once_the_later_one_fails() -> None:
    with ours(("127.0.0.1", 0)) as first, ours(first.getsockname()) as second:
        first.listen()
        with pytest.raises(OSError, match="in use"):
            second.listen()


def test_a_port_whose_connections_have_ended_is_free() -> None:
    with contextlib.ExitStack() as open_ones:
        server = open_ones.enter_context(ours(("127.0.0.1", 0)))
        address = server.getsockname()
        server.listen()
        client = open_ones.enter_context(socket.create_connection(address))
        connection, _ = server.accept()
        # The side that closes first keeps the port for a while.
        connection.close()
        assert client.recv(1) == b""
    ours(address).close()

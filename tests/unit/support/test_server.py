# SPDX-License-Identifier: Apache-2.0
"""A server that does not become healthy, without vLLM."""

import socket
import sys

import pytest

from examples.demo.server import ServerFailedError, reserved_port
from tests.support.server import serve


def program(tmp_path, text):
    path = tmp_path / "program"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize(
    ("text", "seconds", "reason"),
    [
        ("echo starting; exec sleep 2", 0.0, "not healthy after 0 s"),
        ("echo starting; exit 3", 60.0, "ended with status 3"),
    ],
)
def test_it_is_given_up_with_the_end_of_its_log(tmp_path, monkeypatch, text, seconds, reason):
    monkeypatch.setattr(sys, "executable", program(tmp_path, text))
    log = tmp_path / "logs" / "server.log"
    with (
        pytest.raises(ServerFailedError, match=reason) as failure,
        serve(["model"], log, start_seconds=seconds),
    ):
        pass
    assert seconds == 0.0 or "starting" in str(failure.value)


def test_a_reserved_port_is_the_servers_alone():
    with reserved_port() as holder, socket.socket() as other, socket.socket() as server:
        address = holder.getsockname()
        with pytest.raises(OSError, match="in use"):
            other.bind(address)
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(address)
        server.listen()
        with socket.create_connection(address, timeout=10):
            assert server.accept()[1][0] == "127.0.0.1"

# SPDX-License-Identifier: Apache-2.0
"""Ports that a program is told seconds before it listens."""

import random
import socket
from pathlib import Path

import pytest

from tests.support import ports

GIVEN_OUT = Path("/proc/sys/net/ipv4/ip_local_port_range")


def drawn(monkeypatch, *numbers):
    left = iter(numbers)
    monkeypatch.setattr(random.SystemRandom, "randint", lambda self, first, last: next(left))


@pytest.mark.skipif(not GIVEN_OUT.exists(), reason="Linux says which ports it gives out")
def test_no_process_beside_it_is_given_the_port_by_the_system():
    assert int(GIVEN_OUT.read_text().split()[0]) > ports.LAST
    assert ports.FIRST <= ports.free_port() <= ports.LAST


def test_a_port_with_a_listener_is_left_out(monkeypatch):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        number = taken.getsockname()[1]
        drawn(monkeypatch, number, number, ports.FIRST - 1)
        assert ports.free_port() == ports.FIRST - 1
        drawn(monkeypatch, *[number] * ports.MOST_TRIES)
        with pytest.raises(OSError, match="no free port"):
            ports.free_port()

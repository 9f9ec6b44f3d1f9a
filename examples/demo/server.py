# SPDX-License-Identifier: Apache-2.0
"""A real ``vllm serve`` process on loopback."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mkv_ascend.child_process import module_command, safe_environment

START_SECONDS = 900
STOP_SECONDS = 30

# The server is on this machine: a proxy of the environment must not be asked for it.
_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class ServerFailedError(RuntimeError):
    """Why a server is not healthy; the text holds the end of its log."""


@dataclass(frozen=True)
class Server:
    """A running server; ``log``: the file that holds what it prints."""

    address: str
    log: Path
    process: subprocess.Popen[bytes]

    @property
    def openai_address(self) -> str:
        """Base address for the openai client."""
        return f"{self.address}/v1"

    def call_workers(self, method: str) -> Any:
        """Call a worker's method in every worker process; its answers, first worker first.

        Uses the server's development endpoint, which ``serve`` switches on.
        """
        request = urllib.request.Request(
            f"{self.address}/collective_rpc",
            data=json.dumps({"method": method}).encode(),
            headers={"Content-Type": "application/json"},
        )
        with _DIRECT.open(request, timeout=120) as answer:
            return json.load(answer)["results"]

    def metrics(self) -> dict[str, float]:
        """Prometheus samples: ``name`` or ``name[position]`` for per-position counters -> value."""
        from prometheus_client.parser import text_string_to_metric_families

        with _DIRECT.open(f"{self.address}/metrics", timeout=120) as answer:
            text = answer.read().decode()
        samples: dict[str, float] = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                position = sample.labels.get("position")
                key = sample.name if position is None else f"{sample.name}[{position}]"
                samples[key] = samples.get(key, 0.0) + sample.value
        return samples


def reserved_port() -> socket.socket:
    """A socket that has a free TCP port of the loopback interface, and listens to nothing.

    While it is open nobody else is given its port, and no connection goes out from it; a server
    that sets SO_REUSEADDR, as vLLM's does, may listen there.
    """
    holder = socket.socket()
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    holder.bind(("127.0.0.1", 0))
    return holder


@contextlib.contextmanager
def started(
    arguments: list[str],
    log: Path,
    environment: Mapping[str, str] | None = None,
    before: Sequence[str] = (),
) -> Iterator[Server]:
    """Start ``vllm serve ARGUMENTS``, which is not healthy yet; ends it on leaving.

    Args:
        arguments: model and options; host and port are added.
        log: file for everything that the server prints.
        environment: of the server; None inherits this process's.
        before: a command that becomes the server's, which is added to it.
    """
    variables = safe_environment(environment)
    variables.update(VLLM_SERVER_DEV_MODE="1", OMP_NUM_THREADS="1")
    log.parent.mkdir(parents=True, exist_ok=True)
    with reserved_port() as holder, log.open("w") as output:
        port = holder.getsockname()[1]
        command = [*before, *module_command("vllm.entrypoints.cli.main"), "serve", *arguments]
        # A session of its own, so that all of its children can be ended together.
        process = subprocess.Popen(
            [*command, "--host", "127.0.0.1", "--port", str(port)],
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            yield Server(f"http://127.0.0.1:{port}", log, process)
        finally:
            _end(process)


def wait_until_healthy(
    server: Server,
    on_wait: Callable[[float], None] = lambda seconds: None,
    start_seconds: float = START_SECONDS,
) -> None:
    """Wait until ``server`` answers; ``on_wait`` is called with the seconds waited, once a second.

    Raises:
        ServerFailedError: it ended, or is not healthy within ``start_seconds``; its log's end.
    """
    start = time.monotonic()
    while True:
        waited = time.monotonic() - start
        status = server.process.poll()
        if status is not None:
            raise ServerFailedError(f"the server ended with status {status}\n{_end_of(server.log)}")
        if waited > start_seconds:
            raise ServerFailedError(
                f"the server was not healthy after {waited:.0f} s\n{_end_of(server.log)}"
            )
        try:
            with _DIRECT.open(f"{server.address}/health", timeout=5):
                return
        except (urllib.error.URLError, OSError):
            on_wait(waited)
            time.sleep(1.0)


def _end_of(log: Path, lines: int = 60) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-lines:])


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ask the server to stop, then end its whole session, so that no worker is left behind."""
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(signal.SIGINT)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(STOP_SECONDS)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()

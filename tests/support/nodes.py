# SPDX-License-Identifier: Apache-2.0
"""Two nodes of a Ray cluster on this machine's loopback, each with one NPU and an address."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import psutil

from tests.support.ports import free_port
from tests.support.programs import with_repository

RAY = "2.60.0"
"""The release that these tests were run with."""
IS_INSTALLED = find_spec("ray") is not None
ADDRESSES = ("127.0.0.2", "127.0.0.3")
STORE_BYTES = 100 << 20
START_SECONDS = 120
SHARED_MEMORY = "/dev/shm/"


@dataclass(frozen=True)
class Node:
    """A node of the cluster.

    Attributes:
        process: `ray start --block`, the parent of the node's daemons and workers.
        address: its own.
        log: what it printed.
    """

    process: subprocess.Popen[bytes]
    address: str
    log: Path

    def kill(self) -> None:
        """End the node as a power cut does: at once, with every worker that runs there."""
        if self.process.poll() is not None:
            return
        everything = [psutil.Process(self.process.pid)]
        everything += everything[0].children(recursive=True)
        shared: set[str] = set()
        for one in everything:
            with contextlib.suppress(psutil.NoSuchProcess):
                shared |= {part.path for part in one.memory_maps()}
                one.send_signal(signal.SIGKILL)
        self.process.wait()
        # A node's memory goes with it; here it is this machine's.
        for name in shared:
            if name.startswith(SHARED_MEMORY):
                Path(name).unlink(missing_ok=True)


@dataclass(frozen=True)
class Cluster:
    """Nodes that run, the first of which keeps the cluster's state.

    Attributes:
        nodes: in the order of their addresses.
        port: of the first one.
    """

    nodes: tuple[Node, ...]
    port: int

    @property
    def variables(self) -> dict[str, str]:
        """Of an engine's environment that is to run on the cluster."""
        return {"RAY_ADDRESS": f"{ADDRESSES[0]}:{self.port}", **QUIET}


QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_DEDUP_LOGS": "0", "RAY_worker_niceness": "0"}
"""Each line of a worker is told; workers do not stand back behind other processes."""
UNTRACED = {"TORCHDYNAMO_DISABLE": "1", "VLLM_USE_AOT_COMPILE": "0"}
"""Models run as they are written."""


@contextlib.contextmanager
def two_nodes(variables: Mapping[str, str]) -> Iterator[Cluster]:
    """Two nodes, until the end of the block.

    Args:
        variables: of their workers' environment; an engine hands on its own, but too late for
            what is read while modules are imported.

    Raises:
        TimeoutError: a node is not there within ``START_SECONDS``, or within the 30 seconds that
            Ray gives it by itself, as happens beside other work.
    """
    port = free_port()
    # Paths of Ray's sockets must be short.
    with tempfile.TemporaryDirectory(prefix="ray") as folder, contextlib.ExitStack() as running:
        environment = with_repository({**os.environ, **QUIET, **UNTRACED, **variables})
        head = ["--head", f"--port={port}", "--include-dashboard=false", f"--temp-dir={folder}"]
        joining = [f"--address={ADDRESSES[0]}:{port}"]
        nodes = []
        for address, options in zip(ADDRESSES, (head, joining), strict=True):
            log = Path(folder, f"{address}.txt")
            node = Node(
                _started([*options, f"--node-ip-address={address}"], log, environment), address, log
            )
            running.callback(node.kill)
            _wait(node)
            nodes.append(node)
        yield Cluster(tuple(nodes), port)


def _started(
    options: list[str], log: Path, environment: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    ray = Path(sys.executable).with_name("ray")
    common = ["--block", "--num-cpus=1", f"--object-store-memory={STORE_BYTES}"]
    command = [str(ray), "start", *options, *common, '--resources={"NPU": 1}']
    with log.open("w") as out:
        return subprocess.Popen(command, env=environment, stdout=out, stderr=out)


def _wait(node: Node) -> None:
    """Until Ray says that the node has started."""
    end = time.monotonic() + START_SECONDS
    while "Ray runtime started." not in node.log.read_text(errors="replace"):
        if node.process.poll() is not None or time.monotonic() > end:
            raise TimeoutError(f"no node of Ray: {node.log.read_text(errors='replace')[-2000:]}")
        time.sleep(0.2)

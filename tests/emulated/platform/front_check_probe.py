# SPDX-License-Identifier: Apache-2.0
"""Runs commands of ``vllm`` one after another, each in a fork of a process that has imported vLLM.

vllm-ascend keeps what the first configuration of a process says.

Reads a JSON list of commands (words behind ``vllm``), prints one JSON line for each.
"""

import contextlib
import io
import json
import multiprocessing
import os
import signal
import sys
import time
from multiprocessing import shared_memory
from pathlib import Path

SECONDS = 240
"""By then every mistake is refused; what is served would run for ever."""
CREATED = []
"""Names of the shared memory that this process made; others make theirs beside it."""


def note_shared_memory():
    """Let ``CREATED`` know of it."""
    make = shared_memory.SharedMemory.__init__

    def noting(memory, name=None, create=False, *arguments, **options):
        make(memory, name, create, *arguments, **options)
        if create:
            CREATED.append(memory.name)

    shared_memory.SharedMemory.__init__ = noting


def run(words):
    """Exit status, what was said, seconds of this process, and what is still there."""
    from vllm.entrypoints.cli.main import main

    sys.argv = ["vllm", *words]
    said, begin = io.StringIO(), time.process_time()
    status, raised = 0, None
    with contextlib.redirect_stderr(said):
        try:
            main()
        except SystemExit as error:
            # What Python prints at the end of a process.
            status = error.code if isinstance(error.code, int) else 1
            if isinstance(error.code, str):
                said.write(error.code)
        except BaseException as error:
            raised = f"{type(error).__name__}: {error}"
    return {
        "status": status,
        "raised": raised,
        "said": said.getvalue(),
        "seconds": round(time.process_time() - begin, 2),
        "children": [child.name for child in multiprocessing.active_children()],
        "shared": [name for name in CREATED if Path("/dev/shm", name).exists()],
        "process": os.getpid(),
    }


def tell(answer):
    """Not by print: vLLM begins each line of a process with the process's name."""
    os.write(1, f"\nprobe: {json.dumps(answer)}\n".encode())


def ends(child):
    """Whether it does in time."""
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        if os.waitpid(child, os.WNOHANG)[0]:
            return True
        time.sleep(0.1)
    return False


if __name__ == "__main__":
    import vllm.entrypoints.cli.main
    import vllm.entrypoints.cli.serve  # noqa: F401

    note_shared_memory()
    for command in json.loads(sys.stdin.read()):
        child = os.fork()
        if child == 0:
            os.setsid()
            tell(run(command))
            os._exit(0)
        if not ends(child):
            os.killpg(child, signal.SIGKILL)
            os.waitpid(child, 0)
            tell({"status": None, "raised": f"it runs for more than {SECONDS} s", "said": ""})

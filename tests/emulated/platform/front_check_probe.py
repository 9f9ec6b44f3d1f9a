# SPDX-License-Identifier: Apache-2.0
"""Runs commands of ``vllm`` one after another in one process, which imports vLLM once.

Reads a JSON list of commands (words behind ``vllm``), prints one JSON line for each.
"""

import contextlib
import io
import json
import multiprocessing
import os
import sys
import time
from pathlib import Path


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
        "shared": sorted(path.name for path in Path("/dev/shm").glob("psm_*")),
        "process": os.getpid(),
    }


if __name__ == "__main__":
    for command in json.loads(sys.stdin.read()):
        # Not by print: vLLM begins each line of this process with the process's name.
        os.write(1, f"\nprobe: {json.dumps(run(command))}\n".encode())

# SPDX-License-Identifier: Apache-2.0
"""What holds for tests without a device."""

import os
from importlib import metadata
from pathlib import Path

# vLLM 0.30 asks for its platform when it is imported; without a device there is none, and ours says
# so and ends the process.
os.environ.setdefault("VLLM_PLUGINS", "")

HERE = Path(__file__).parent
HOSTLESS = frozenset(
    HERE / name
    for name in (
        # Rooms and kernels that import nothing of a host, which lint sees to, beside one torch.
        *("advice", "ascend_kernels", "ascendc_host", "attention", "layout", "ops"),
        # What is built and shipped is the same for each host, and so are the tools that read it.
        *("install", "support"),
        "drafting/test_proposal.py",
        "commands/test_advise.py",
        "benchmarks/test_ops.py",
        "reliability/test_calls.py",
    )
)
"""What no host changes: it is run on 0.23 alone, or where it is named."""


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    on_another = not metadata.version("vllm-ascend").startswith("0.23.")
    return True if on_another and collection_path in HOSTLESS else None

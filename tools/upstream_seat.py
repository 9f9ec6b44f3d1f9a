# SPDX-License-Identifier: Apache-2.0
"""Plugin of pytest for ``tools/upstream_tests.py``: whose code the tests of a checkout get.

The checkout has a folder ``vllm_ascend``, and pytest puts the checkout in front of the path. So the
installed wheel is imported before: its modules are the ones that are tested. Asking vLLM for its
platform lets this plugin claim the platform slot, as in any process that uses vLLM.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import vllm_ascend
from vllm.platforms import current_platform


def pytest_configure(config: pytest.Config) -> None:
    """Refuse to test anything else than the wheel with the platform that is asked for."""
    source = Path(vllm_ascend.__file__).resolve()
    if config.rootpath.resolve() in source.parents:
        raise pytest.UsageError(f"vllm_ascend comes from the checkout: {source}")
    seat = type(current_platform).__module__
    owner = "vllm_ascend" if os.environ.get("VLLM_PLUGINS") == "ascend" else "mkv_ascend"
    if seat.split(".")[0] != owner:
        raise pytest.UsageError(f"the platform is {seat}, not {owner}'s; install mkv_ascend")

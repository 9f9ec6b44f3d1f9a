# SPDX-License-Identifier: Apache-2.0
"""Every test of an op runs on each of its implementations for CPU tensors."""

from collections.abc import Iterator
from importlib import import_module

import pytest

from mkv_ascend.ops import NAMES, implementations
from mkv_ascend.ops.registration import OPS, checked_reference


@pytest.fixture(scope="module", params=["reference", "native", "ascendc_host"], autouse=True)
def implementation(request: pytest.FixtureRequest) -> Iterator[str]:
    """Have the ops' functions call this implementation, whatever this process has chosen."""
    with pytest.MonkeyPatch.context() as patch:
        for name in NAMES:
            module = import_module(f"mkv_ascend.ops.{name}")
            if request.param == "reference":
                kernel = checked_reference(OPS[name])
            else:
                kernel = implementations.kernel_of(request.param, name)
            patch.setattr(module, "_op", kernel)
        yield request.param

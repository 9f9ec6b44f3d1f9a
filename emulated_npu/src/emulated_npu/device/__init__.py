# SPDX-License-Identifier: Apache-2.0
"""The emulated device as PyTorch sees it: ``torch.device("npu")`` and ``torch.npu``."""

from __future__ import annotations

import functools
import sys
from types import ModuleType

CANN_VERSION = "9.1.0"
"""What ``torch.version.cann`` says."""


@functools.lru_cache(maxsize=1)
def install() -> ModuleType:
    """Give this process its emulated NPUs and return the module ``torch.npu``.

    Loads the native device with the settings of this process, and registers device, module and
    tensor methods (``.npu()``, ``.is_npu``) with PyTorch. A second call changes nothing. Raises
    NativeDeviceMissing when the native part is not built.
    """
    import torch

    from emulated_npu import exit_report
    from emulated_npu.device import native
    from emulated_npu.settings import settings

    torch.utils.rename_privateuse1_backend("npu")
    native.initialize(settings())
    # Imported only now: the namespace asks the device for its properties.
    from emulated_npu.device import npu

    torch._register_device_module("npu", npu)
    sys.modules["torch.npu"] = npu
    torch.utils.generate_methods_for_privateuse1_backend(
        for_tensor=True,
        for_module=True,
        for_packed_sequence=True,
        for_storage=True,
        unsupported_dtype=[
            torch.quint8,
            torch.quint4x2,
            torch.quint2x4,
            torch.qint32,
            torch.qint8,
        ],
    )
    torch.version.cann = CANN_VERSION  # type: ignore[attr-defined]
    if settings().report_counters:
        exit_report.install()
    return npu

# SPDX-License-Identifier: Apache-2.0
"""The emulated fla_npu.ops.ascendc; its content is in emulated_npu."""

import sys as _sys

import torch_npu as _torch_npu  # noqa: F401 (the device, before any of its operators)

from emulated_npu.modules import fla_npu_ascendc as _ascendc

_ascendc.install(_sys.modules[__name__])
__getattr__ = _ascendc.missing_attribute

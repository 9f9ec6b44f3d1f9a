# SPDX-License-Identifier: Apache-2.0
"""torch_npu._C: the few names that vllm-ascend takes from torch_npu's native module."""

from __future__ import annotations

from emulated_npu.device.graphs import TaskGroup as _NPUTaskGroupHandle
from emulated_npu.device.native import weak_reference as _weak_ref_tensor

__all__ = ["_NPUTaskGroupHandle", "_weak_ref_tensor"]

# SPDX-License-Identifier: Apache-2.0
"""torch_npu of the stand-in: an NPU that torch knows by name, without memory of its own."""

import types

import torch

__version__ = "2.10.0"

torch.utils.rename_privateuse1_backend("npu")
torch._register_device_module("npu", types.SimpleNamespace(is_available=lambda: True))

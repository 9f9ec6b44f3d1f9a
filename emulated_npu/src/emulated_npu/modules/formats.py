# SPDX-License-Identifier: Apache-2.0
"""torch_npu.Format: numbers of the storage formats (source: op-plugin docs, npu_format_cast)."""

from __future__ import annotations

from enum import IntEnum


class Format(IntEnum):
    """Storage formats of a device tensor that vllm-ascend names."""

    UNDEFINED = -1
    NCHW = 0
    NHWC = 1
    ND = 2
    NC1HWC0 = 3
    FRACTAL_Z = 4
    NC1HWC0_C04 = 12
    HWCN = 16
    NDHWC = 27
    FRACTAL_NZ = 29
    NCDHW = 30
    NDC1HWC0 = 32
    FRACTAL_Z_3D = 33
    NC = 35
    NCL = 47

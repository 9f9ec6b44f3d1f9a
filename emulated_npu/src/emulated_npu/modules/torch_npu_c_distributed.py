# SPDX-License-Identifier: Apache-2.0
"""torch_npu._C._distributed_c10d: the process group class of the emulated collectives."""

from emulated_npu.collectives import ProcessGroupHCCL

__all__ = ["ProcessGroupHCCL"]

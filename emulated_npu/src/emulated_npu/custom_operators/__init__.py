# SPDX-License-Identifier: Apache-2.0
"""torch.ops._C_ascend: the custom operators of vllm-ascend, as CPU reference kernels.

Their schemas are those of the installed vllm-ascend; a schema without a kernel here raises
NotImplementedError with its name when it is called.
"""

from emulated_npu.custom_operators.library import install

__all__ = ["install"]

# SPDX-License-Identifier: Apache-2.0
"""The emulated fla_npu: Ascend's kernels of linear attention, which vllm-ascend 0.30 imports."""

# SPDX-License-Identifier: Apache-2.0
"""Operators of ``fla_npu.ops.ascendc`` (flash-linear-attention-npu), as CPU reference kernels.

vllm-ascend 0.30 takes its causal convolutions and delta rules from that package. Its semantics are
documented in flashserve/flash-linear-attention-npu, in the README and docs of each operator.
"""

NAMESPACE = "fla_npu"
"""Of these operators in the registry and in the launch counters."""

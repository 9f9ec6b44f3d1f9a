# SPDX-License-Identifier: Apache-2.0
"""Operators of fla_npu; vllm-ascend imports those in ``ascendc``."""

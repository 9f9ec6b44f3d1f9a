# SPDX-License-Identifier: Apache-2.0
"""Model runner V1, which vllm-ascend 0.30.0rc2 runs unless it is told otherwise."""

# SPDX-License-Identifier: Apache-2.0
"""Model runner V2 of vllm-ascend 0.30.0rc2."""

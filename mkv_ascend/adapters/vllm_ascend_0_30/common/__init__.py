# SPDX-License-Identifier: Apache-2.0
"""What both model runners of vllm-ascend 0.30.0rc2 take."""

# SPDX-License-Identifier: Apache-2.0
"""Which draft serves which target: every pair of families is run, here and on stock vllm-ascend."""

# SPDX-License-Identifier: Apache-2.0
"""What of a configuration is checked on vllm-ascend 0.30.0rc2 alone."""

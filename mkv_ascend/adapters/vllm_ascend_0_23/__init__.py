# SPDX-License-Identifier: Apache-2.0
"""The adapter of vllm-ascend 0.23.0 and 0.23.0.post1; ``host.py`` is what the plugin sees of it."""

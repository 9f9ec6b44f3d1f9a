# SPDX-License-Identifier: Apache-2.0
"""The adapter of vllm-ascend 0.30.0rc2; ``host.py`` is what the plugin sees of it."""

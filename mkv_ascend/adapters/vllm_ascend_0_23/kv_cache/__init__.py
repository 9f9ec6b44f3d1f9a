# SPDX-License-Identifier: Apache-2.0
"""KV caches on vllm-ascend 0.23.0: the engine core's planning, and specs of MLA layers."""

# SPDX-License-Identifier: Apache-2.0
"""KV caches on vllm-ascend 0.30.0rc2: layers of all groups share bytes again."""

# SPDX-License-Identifier: Apache-2.0
"""From vLLM's cache specs to KV groups, a plan and the allocated caches."""

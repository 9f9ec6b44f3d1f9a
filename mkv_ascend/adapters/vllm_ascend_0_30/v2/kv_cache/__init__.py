# SPDX-License-Identifier: Apache-2.0
"""KV caches in model runner V2."""

# SPDX-License-Identifier: Apache-2.0
"""Commands that are judged in a process of their own, and vLLM's own grouping."""

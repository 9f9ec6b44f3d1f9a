# SPDX-License-Identifier: Apache-2.0
"""vLLM's entry points, and the choice of the adapter for what is installed."""

# SPDX-License-Identifier: Apache-2.0
"""Models that vLLM builds without memory, for ``mkv-ascend explain``."""

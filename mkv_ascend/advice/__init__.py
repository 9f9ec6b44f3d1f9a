# SPDX-License-Identifier: Apache-2.0
"""How long a decoding step takes, predicted from sizes alone: arithmetic, no torch, no vLLM."""

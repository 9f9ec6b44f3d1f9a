# SPDX-License-Identifier: Apache-2.0
"""Drafting on vllm-ascend 0.30.0rc2."""

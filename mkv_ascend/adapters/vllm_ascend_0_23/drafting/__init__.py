# SPDX-License-Identifier: Apache-2.0
"""Thin adapters of vllm-ascend's proposers: foreign names in, ours out."""

# SPDX-License-Identifier: Apache-2.0
"""Measurements of mkv_ascend against vLLM and vllm-ascend as they are."""

# SPDX-License-Identifier: Apache-2.0
"""Adapters of hosts: the only packages that import vLLM, vllm-ascend or torch_npu."""

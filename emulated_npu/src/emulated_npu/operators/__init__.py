# SPDX-License-Identifier: Apache-2.0
"""Operators of torch_npu as CPU reference kernels; registry.py says how one is written."""

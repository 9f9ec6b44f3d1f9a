# SPDX-License-Identifier: Apache-2.0
"""torch_npu._inductor: importing the real one registers an Inductor backend for the device.

vllm-ascend imports it when Triton is there, and turns Inductor off. There is no emulated Inductor
backend: ``torch.compile`` for npu tensors fails in Inductor itself.
"""

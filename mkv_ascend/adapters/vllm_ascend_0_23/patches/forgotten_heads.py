# SPDX-License-Identifier: Apache-2.0
"""Heads of multi-token prediction that vLLM knows and vllm-ascend 0.23.0 has forgotten."""

from __future__ import annotations

from typing import Any

from mkv_ascend.adapters.patching import patch

FORGOTTEN = {"hy_v3": ("hy_v3_mtp", "HYV3MTPModel")}
"""Model type of a target -> type and architecture of its head."""


@patch(
    name="forgotten heads",
    target="vllm.config.speculative:SpeculativeConfig.hf_config_override",
    reads=("vllm_ascend.patch.platform.patch_speculative_config:hf_config_override",),
    writes=("model_type",),
    why="vllm-ascend replaces the method by an older one, in which Hunyuan 3 has no head: method "
    "mtp is refused as one that vLLM does not support.",
    until="vllm-ascend calls vLLM's own method",
    test="tests/emulated/benchmarks/test_matrix.py::test_a_cell_ends_as_published",
)
def remember_heads(original: Any, hf_config: Any) -> Any:
    """``hf_config_override``, and what vLLM's own makes of these families."""
    found = original(hf_config)
    if found.model_type in FORGOTTEN:
        found.model_type, architecture = FORGOTTEN[found.model_type]
        layers = getattr(found, "num_nextn_predict_layers", None)
        found.update({"n_predict": layers, "architectures": [architecture]})
    return found

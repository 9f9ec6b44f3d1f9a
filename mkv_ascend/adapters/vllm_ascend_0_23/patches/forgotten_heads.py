# SPDX-License-Identifier: Apache-2.0
"""Heads of multi-token prediction that vLLM knows and vllm-ascend 0.23.0 has forgotten."""

from __future__ import annotations

from typing import Any

from mkv_ascend.adapters.patching import patch

FORGOTTEN = {"hy_v3": ("hy_v3_mtp", "HYV3MTPModel")}
"""Model type of a target -> type and architecture of its head."""

OF_ONE_LAYER = {"MiMoV2FlashForCausalLM": ("mimo_v2_mtp", "MiMoV2MTPModel")}
"""Class of a target -> type and architecture of its head, of which vLLM builds the first layer
alone, whatever the checkpoint has."""

ASSISTANTS = ("gemma4_assistant", "gemma4_unified_assistant")
"""Types of Gemma 4's heads."""


@patch(
    name="forgotten heads",
    target="vllm.config.speculative:SpeculativeConfig.hf_config_override",
    reads=("vllm_ascend.patch.platform.patch_speculative_config:hf_config_override",),
)
def remember_heads(original: Any, hf_config: Any) -> Any:
    """``hf_config_override``, and what vLLM's own makes of these families."""
    found = original(hf_config)
    if found.model_type in FORGOTTEN:
        found.model_type, architecture = FORGOTTEN[found.model_type]
        layers = getattr(found, "num_nextn_predict_layers", None)
        found.update({"n_predict": layers, "architectures": [architecture]})
    elif found.architectures[0] in OF_ONE_LAYER:
        found.model_type, architecture = OF_ONE_LAYER[found.architectures[0]]
        counts = {"num_hidden_layers": 0, "n_predict": 1, "num_nextn_predict_layers": 1}
        found.update({**counts, "architectures": [architecture]})
    elif found.model_type in ASSISTANTS:
        found.model_type = "gemma4_mtp"
        # The caches that are shared are the target's.
        found.text_config.num_kv_shared_layers = 0
        found.update({"n_predict": 1, "architectures": ["Gemma4MTPModel"]})
    return found

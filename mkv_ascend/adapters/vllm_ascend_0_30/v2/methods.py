# SPDX-License-Identifier: Apache-2.0
"""Draft models in model runner V2, which vLLM's configuration refuses there.

Apart from the other patches: each process applies it at its start, before vLLM is imported.
"""

from __future__ import annotations

from typing import Any

from mkv_ascend.adapters.patching import patch
from mkv_ascend.rules.runner_v2 import METHODS


@patch(
    name="methods of model runner V2",
    target="vllm.config.vllm:VllmConfig._get_v2_model_runner_unsupported_features",
)
def serve_our_methods(original: Any, config: Any) -> list[str]:
    """What vLLM does not support, without the methods that we serve."""
    ours = {f"speculative method '{method}'" for method in METHODS}
    return [feature for feature in original(config) if feature not in ours]

# SPDX-License-Identifier: Apache-2.0
"""Traced graphs that vLLM keeps for the next start belong to one draft."""

from __future__ import annotations

import hashlib
from typing import Any

from mkv_ascend.adapters.patching import patch


@patch(
    name="kept graphs of one draft",
    target="vllm.config.speculative:SpeculativeConfig.compute_hash",
    reads=(
        "vllm.compilation.caching:aot_compile_hash_factors",
        "vllm.config.model:ModelConfig.compute_hash",
    ),
)
def hash_the_draft(original: Any, config: Any) -> str:
    """``compute_hash``, and that of the draft's configuration."""
    found: str = original(config)
    draft = config.draft_model_config
    if draft is None:
        return found
    return hashlib.sha256(f"{found} {draft.compute_hash()}".encode()).hexdigest()

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
    why="vLLM keeps the graphs that Dynamo traced in VLLM_CACHE_ROOT, by a hash of the "
    "configuration, and takes them at the next start without looking at the model. vLLM 0.23.0 "
    "hashes nothing of a draft but the list of depths of eagle3. So a head that is served after "
    "another one for the same target gets that one's graph, with its constants and as many layers "
    "as it had: tokens stay right, drafts are wrong. As read, not run: a target hands a dflash "
    "head the states that the head before it asked for.",
    until="vLLM hashes the draft's configuration, as 0.30.0 does",
    test="tests/emulated/graphs/test_kept_graphs.py::test_a_head_is_not_given_another_ones_graph",
)
def hash_the_draft(original: Any, config: Any) -> str:
    """``compute_hash``, and that of the draft's configuration."""
    found: str = original(config)
    draft = config.draft_model_config
    if draft is None:
        return found
    return hashlib.sha256(f"{found} {draft.compute_hash()}".encode()).hexdigest()

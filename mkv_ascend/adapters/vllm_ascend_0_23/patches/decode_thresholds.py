# SPDX-License-Identifier: Apache-2.0
"""How many tokens a row that decodes may have, beside drafts that propose in parallel."""

from __future__ import annotations

from typing import Any

from mkv_ascend.adapters.patching import patch


@patch(
    name="rows that decode beside Mamba2 and short convolutions",
    target="vllm.v1.attention.backends.mamba_attn:BaseMambaAttentionMetadataBuilder.__init__",
    reads=(
        "vllm.v1.attention.backend:AttentionMetadataBuilder._init_reorder_batch_threshold",
        "vllm_ascend.worker.model_runner_v1:NPUModelRunner.calculate_reorder_batch_threshold",
    ),
)
def rows_that_verify(
    original: Any, builder: Any, spec: Any, layer_names: list[str], config: Any, device: Any
) -> None:
    """As vLLM's, then with 1 + K tokens at most."""
    original(builder, spec, layer_names, config, device)
    speculative = config.speculative_config
    if speculative is not None and speculative.parallel_drafting:
        verified = 1 + speculative.num_speculative_tokens
        builder.reorder_batch_threshold = min(builder.reorder_batch_threshold, verified)

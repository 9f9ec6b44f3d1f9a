# SPDX-License-Identifier: Apache-2.0
"""The configuration of Gemma 4's drafting head, which transformers 5.5.4 does not have.

vLLM 0.23.0 has the head's model, and vllm-ascend 0.23.0 asks for that transformers. Fields are
those of transformers 5.14's ``Gemma4AssistantConfig`` that vLLM reads.
"""

from __future__ import annotations

from typing import Any, ClassVar

from transformers import AutoConfig, Gemma4TextConfig, PretrainedConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

MODEL_TYPE = "gemma4_assistant"


class Gemma4AssistantConfig(PretrainedConfig):
    """``text_config`` are the head's layers, ``backbone_hidden_size`` is the target's width."""

    model_type = MODEL_TYPE
    sub_configs: ClassVar[dict[str, Any]] = {"text_config": Gemma4TextConfig}

    def __init__(
        self,
        text_config: Gemma4TextConfig | dict[str, Any] | None = None,
        backbone_hidden_size: int = 1536,
        use_ordered_embeddings: bool = False,
        num_centroids: int = 2048,
        centroid_intermediate_top_k: int = 32,
        **others: Any,
    ) -> None:
        given: Any = text_config or {}
        if not isinstance(given, Gemma4TextConfig):
            given = Gemma4TextConfig(**given)
        self.text_config = given
        self.backbone_hidden_size = backbone_hidden_size
        self.use_ordered_embeddings = use_ordered_embeddings
        self.num_centroids = num_centroids
        self.centroid_intermediate_top_k = centroid_intermediate_top_k
        super().__init__(**{"tie_word_embeddings": True, **others})


def register() -> None:
    """Let transformers read such a config.json, unless it can."""
    if MODEL_TYPE not in CONFIG_MAPPING:
        AutoConfig.register(MODEL_TYPE, Gemma4AssistantConfig)

# SPDX-License-Identifier: Apache-2.0
"""Which drafts over pipeline stages get the target's embeddings, with tensors of the host."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from mkv_ascend.adapters.common import pipeline


class Model(nn.Module):
    """A model whose class says that it has no embeddings of its own, as Llama's does."""

    has_own_embed_tokens = False

    def __init__(self, filled_with: float) -> None:
        super().__init__()
        self.model = nn.Module()
        self.model.embed_tokens = nn.Embedding(4, 2)
        nn.init.constant_(self.model.embed_tokens.weight, filled_with)


class LastOfTwo:
    """The group of pipeline ranks, on the last one: the first sends embeddings of sevens."""

    world_size = 2
    is_first_rank = False

    def broadcast_object(self, lacks: bool, src: int) -> bool:
        return lacks

    def broadcast_tensor_dict(self, sent: None, src: int) -> dict[str, torch.Tensor]:
        return {"embeddings": torch.full((4, 2), 7.0)}


@pytest.mark.parametrize(("method", "holds"), [("draft_model", 3.0), ("eagle", 7.0)])
def test_a_draft_model_keeps_its_own(
    monkeypatch: pytest.MonkeyPatch, method: str, holds: float
) -> None:
    """Whatever its class says: flags of a class are about heads."""
    monkeypatch.setattr(pipeline, "get_pp_group", LastOfTwo)
    monkeypatch.setattr(pipeline, "supports_multimodal", lambda model: False)
    target, draft = Model(5.0), Model(3.0)
    runner: Any = SimpleNamespace(
        vllm_config=SimpleNamespace(
            speculative_config=SimpleNamespace(method=method),
            parallel_config=SimpleNamespace(pipeline_parallel_size=2),
        ),
        get_model=lambda: target,
    )
    pipeline.share_embeddings(runner, SimpleNamespace(model=draft))
    assert draft.model.embed_tokens.weight.eq(holds).all()

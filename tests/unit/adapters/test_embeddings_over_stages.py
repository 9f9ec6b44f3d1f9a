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


def test_a_draft_has_all_layers_while_it_is_built_or_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """However VLLM_PP_LAYER_PARTITION shares the target's out."""
    monkeypatch.setenv("VLLM_PP_LAYER_PARTITION", "1,5")
    last: Any = SimpleNamespace(world_size=2, is_first_rank=False, is_last_rank=True)
    monkeypatch.setattr(pipeline.parallel_state, "_PP", last)
    stage_of = pipeline.distributed_utils.get_pp_indices
    with pipeline.whole():
        assert pipeline.distributed_utils.get_pp_indices(6, 1, 2) == (0, 6)
        group = pipeline.get_pp_group()
        assert (group.world_size, group.is_first_rank, group.is_last_rank) == (1, True, True)
    assert pipeline.distributed_utils.get_pp_indices is stage_of
    assert stage_of(6, 1, 2) == (1, 6)
    assert pipeline.get_pp_group() is last

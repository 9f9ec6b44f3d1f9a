# SPDX-License-Identifier: Apache-2.0
"""Which weights of an MTP draft's checkpoint are said to be left out, with tiny matrices."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from mkv_ascend.adapters.common import weights

VOCABULARY, WIDTH = 300, 4
EMBEDDINGS, MATRIX = (torch.randn(VOCABULARY, WIDTH) for _ in range(2))
OF_LAYER = "model.layers.2.embed_tokens.weight"


class Model(nn.Module):
    """Rows ``first`` to ``last`` of the matrices, as one rank of tensor parallelism holds them."""

    def __init__(self, first: int = 0, last: int = VOCABULARY) -> None:
        super().__init__()
        self.model = nn.Module()
        shard = SimpleNamespace(org_vocab_start_index=first, org_vocab_end_index=last)
        for owner, name, matrix in (
            (self.model, "embed_tokens", EMBEDDINGS),
            (self, "lm_head", MATRIX),
        ):
            module = nn.Embedding.from_pretrained(matrix[first:last].clone())
            module.shard_indices = shard  # type: ignore[assignment]
            setattr(owner, name, module)


def sharing(target: Model, *names: str) -> nn.Module:
    """A head with the target's modules of these names."""
    head = nn.Module()
    head.model = nn.Module()
    if "embed_tokens" in names:
        head.model.embed_tokens = target.model.embed_tokens
    if "lm_head" in names:
        head.lm_head = target.lm_head
    return head


@pytest.fixture
def warnings(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    said: list[str] = []
    monkeypatch.setattr(weights, "supports_multimodal", lambda model: False)
    monkeypatch.setattr(weights.logger, "warning", lambda text, *values: said.append(text % values))
    return said


def warn(
    folder: Path, target: Model, head: nn.Module, method: str = "mtp", model: str = "target"
) -> None:
    draft = SimpleNamespace(model=str(folder), hf_config=SimpleNamespace(model_type="deepseek_mtp"))
    speculative = SimpleNamespace(method=method, draft_model_config=draft)
    config = SimpleNamespace(
        speculative_config=speculative, model_config=SimpleNamespace(model=model)
    )
    runner: Any = SimpleNamespace(vllm_config=config, get_model=lambda: target)
    weights.warn(runner, SimpleNamespace(model=head))


def changed(matrix: torch.Tensor, from_row: int = 0) -> torch.Tensor:
    other = matrix.clone()
    other[from_row:] += 1
    return other


@pytest.mark.parametrize(
    ("stored", "said"),
    [
        ({"model.embed_tokens.weight": EMBEDDINGS, OF_LAYER: EMBEDDINGS}, None),
        # The layer's own count, not those of the model that it came with, and the other way around.
        ({"model.embed_tokens.weight": EMBEDDINGS, OF_LAYER: changed(EMBEDDINGS)}, "embeddings"),
        ({"model.embed_tokens.weight": changed(EMBEDDINGS), OF_LAYER: EMBEDDINGS}, None),
        ({"model.embed_tokens.weight": changed(EMBEDDINGS)}, "embeddings"),
        ({"model.layers.2.shared_head.head.weight": changed(MATRIX)}, "output matrix"),
        ({OF_LAYER: changed(EMBEDDINGS), "lm_head.weight": changed(MATRIX)}, "output matrix"),
        ({OF_LAYER: EMBEDDINGS[:, :2]}, None),
        ({"model.norm.weight": EMBEDDINGS}, None),
    ],
)
def test_what_differs_is_said(
    tmp_path: Path, warnings: list[str], stored: dict[str, torch.Tensor], said: str | None
) -> None:
    copies = {name: value.clone().contiguous() for name, value in stored.items()}
    save_file(copies, tmp_path / "a.safetensors")
    target = Model()
    warn(tmp_path, target, sharing(target, "embed_tokens", "lm_head"))
    assert len(warnings) == (said is not None)
    if said is not None:
        assert said in warnings[0]
        assert str(tmp_path) in warnings[0]


def test_a_head_that_keeps_its_own_is_not_warned_of(tmp_path: Path, warnings: list[str]) -> None:
    """Over pipeline stages: the target's embeddings are on another one."""
    save_file({OF_LAYER: changed(EMBEDDINGS), "lm_head.weight": MATRIX}, tmp_path / "a.safetensors")
    target = Model()
    warn(tmp_path, target, sharing(target, "lm_head"))
    assert not warnings


@pytest.mark.parametrize(("from_row", "last_differs"), [(200, True), (VOCABULARY, False)])
def test_a_rank_compares_its_own_rows(
    tmp_path: Path, warnings: list[str], from_row: int, last_differs: bool
) -> None:
    save_file({OF_LAYER: changed(EMBEDDINGS, from_row)}, tmp_path / "a.safetensors")
    for first, last, differs in ((0, 150, False), (150, 300, last_differs)):
        target = Model(first, last)
        warn(tmp_path, target, sharing(target, "embed_tokens"))
        assert bool(warnings) == differs


@pytest.mark.parametrize("kind", ["of the target", "eagle"])
def test_other_drafts_are_not_read(tmp_path: Path, warnings: list[str], kind: str) -> None:
    save_file({OF_LAYER: changed(EMBEDDINGS)}, tmp_path / "a.safetensors")
    target = Model()
    changes = {"model": str(tmp_path)} if kind == "of the target" else {"method": kind}
    warn(tmp_path, target, sharing(target, "embed_tokens"), **changes)
    assert not warnings

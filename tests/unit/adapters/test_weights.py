# SPDX-License-Identifier: Apache-2.0
"""Which parameters of a draft lack weights, and which weights are left out, with tiny matrices."""

import math
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from vllm.model_executor.model_loader import base_loader

from mkv_ascend.adapters.common import weights

CONFIG: Any = SimpleNamespace(
    speculative_config=SimpleNamespace(draft_model_config=SimpleNamespace(model="/models/draft"))
)


class Layer(nn.Module):
    """One matrix of memory as it is, one norm with a value of its own."""

    def __init__(self, dtype: torch.dtype = torch.bfloat16) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(4, 6, dtype=dtype), requires_grad=False)
        self.norm = nn.Parameter(torch.ones(6), requires_grad=False)
        self.room = torch.empty(3)
        self.room[:2] = 5
        self.own = nn.Parameter(torch.empty(2).fill_(7), requires_grad=False)


class Model(nn.Module):
    """Two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Layer(), Layer(torch.float32)


def load(monkeypatch: pytest.MonkeyPatch, write: Callable[[Model], Any]) -> Any:
    """A proposer whose draft is built, and written by ``write``."""
    seen: list[Any] = []
    monkeypatch.setattr(weights, "PIECE", 4)  # elements of a matrix of 24
    monkeypatch.setattr(base_loader, "process_weights_after_loading", lambda *a: seen.append(a))
    monkeypatch.setattr(base_loader, "initialize_model", lambda kind: kind())
    with weights.noted():
        model = base_loader.initialize_model(Model)
        write(model)
        # Made of weights behind the loading, before it is a parameter.
        made = torch.empty(2)
        model.second.own = nn.Parameter(made.fill_(8), requires_grad=False)
        base_loader.process_weights_after_loading(model, None, None)
    assert seen == [(model, None, None)], "vLLM's own function goes on behind ours"
    return SimpleNamespace(model=model)


def fill(model: Model) -> None:
    """All matrices get weights; infinite ones are weights, too."""
    model.first.weight.copy_(torch.full((4, 6), float("inf")))
    model.second.weight.copy_(torch.tensor([float("inf"), -float("inf")] * 12).reshape(4, 6))


def test_what_is_written_is_served(monkeypatch: pytest.MonkeyPatch) -> None:
    """What has values of its own keeps them, and what is no parameter holds numbers."""
    proposer = load(monkeypatch, fill)
    weights.refuse(CONFIG, proposer)
    assert torch.equal(proposer.model.first.norm, torch.ones(6))
    assert torch.equal(proposer.model.first.room, torch.tensor([5.0, 5.0, 0.0]))
    assert torch.equal(proposer.model.first.own, torch.full((2,), 7.0))
    assert torch.equal(proposer.model.second.own, torch.full((2,), 8.0))


@pytest.mark.parametrize(
    ("write", "names"),
    [
        (lambda model: None, "for first.weight, second.weight, which"),
        (lambda model: model.first.weight.zero_(), "for second.weight, which"),
        (lambda model: (fill(model), model.second.weight[2:].fill_(float("nan"))), "for second."),
    ],
    ids=["none", "one", "a part"],
)
def test_what_is_not_written_is_refused(
    monkeypatch: pytest.MonkeyPatch, write: Callable[[Model], Any], names: str
) -> None:
    proposer = load(monkeypatch, write)
    with pytest.raises(ValueError, match=r"Possible: .* Change: ") as refused:
        weights.refuse(CONFIG, proposer)
    assert names in str(refused.value)
    assert "/models/draft" in str(refused.value)


def test_a_quantised_layer_may_have_what_no_file_of_its_format_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An offset that no layer got is none; a scale that one layer lacks is missing."""

    def quantise(model: Model) -> None:
        fill(model)
        for layer in (model.first, model.second):
            layer.quant_method = object()
            layer.offset = nn.Parameter(torch.full((2,), math.nan), requires_grad=False)
            layer.scale = nn.Parameter(torch.ones(2), requires_grad=False)

    weights.refuse(CONFIG, load(monkeypatch, quantise))

    def lose_a_scale(model: Model) -> None:
        quantise(model)
        model.second.scale.fill_(math.nan)

    with pytest.raises(ValueError, match=r"or a part, for second\.scale, which"):
        weights.refuse(CONFIG, load(monkeypatch, lose_a_scale))


def test_what_the_target_gives_is_not_asked_of_files(monkeypatch: pytest.MonkeyPatch) -> None:
    proposer = load(monkeypatch, lambda model: model.first.weight.zero_())
    proposer.model.second = Layer()
    # What nobody wrote looks so; memory that is new here may hold anything.
    proposer.model.second.weight.fill_(float("nan"))
    weights.refuse(CONFIG, proposer)


def test_what_is_written_behind_the_loading_is_served(monkeypatch: pytest.MonkeyPatch) -> None:
    """As embeddings that another pipeline stage sends."""
    proposer = load(monkeypatch, lambda model: model.first.weight.zero_())
    proposer.model.second.weight.zero_()
    weights.refuse(CONFIG, proposer)


def test_without_a_draft(monkeypatch: pytest.MonkeyPatch) -> None:
    weights.refuse(CONFIG, None)
    weights.refuse(CONFIG, SimpleNamespace())
    assert base_loader.process_weights_after_loading.__module__ != weights.__name__


VOCABULARY, WIDTH = 300, 4
EMBEDDINGS, MATRIX = (torch.randn(VOCABULARY, WIDTH) for _ in range(2))
OF_LAYER = "model.layers.2.embed_tokens.weight"


class Sharded(nn.Module):
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


def sharing(target: Sharded, *names: str) -> nn.Module:
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
    folder: Path, target: Sharded, head: nn.Module, method: str = "mtp", model: str = "target"
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
    target = Sharded()
    warn(tmp_path, target, sharing(target, "embed_tokens", "lm_head"))
    assert len(warnings) == (said is not None)
    if said is not None:
        assert said in warnings[0]
        assert str(tmp_path) in warnings[0]


def test_a_head_that_keeps_its_own_is_not_warned_of(tmp_path: Path, warnings: list[str]) -> None:
    """Over pipeline stages: the target's embeddings are on another one."""
    save_file({OF_LAYER: changed(EMBEDDINGS), "lm_head.weight": MATRIX}, tmp_path / "a.safetensors")
    target = Sharded()
    warn(tmp_path, target, sharing(target, "lm_head"))
    assert not warnings


@pytest.mark.parametrize(("from_row", "last_differs"), [(200, True), (VOCABULARY, False)])
def test_a_rank_compares_its_own_rows(
    tmp_path: Path, warnings: list[str], from_row: int, last_differs: bool
) -> None:
    save_file({OF_LAYER: changed(EMBEDDINGS, from_row)}, tmp_path / "a.safetensors")
    for first, last, differs in ((0, 150, False), (150, 300, last_differs)):
        target = Sharded(first, last)
        warn(tmp_path, target, sharing(target, "embed_tokens"))
        assert bool(warnings) == differs


@pytest.mark.parametrize("kind", ["of the target", "eagle"])
def test_other_drafts_are_not_read(tmp_path: Path, warnings: list[str], kind: str) -> None:
    save_file({OF_LAYER: changed(EMBEDDINGS)}, tmp_path / "a.safetensors")
    target = Sharded()
    changes = {"model": str(tmp_path)} if kind == "of the target" else {"method": kind}
    warn(tmp_path, target, sharing(target, "embed_tokens"), **changes)
    assert not warnings

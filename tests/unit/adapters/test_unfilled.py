# SPDX-License-Identifier: Apache-2.0
"""Which parameters of a draft are refused for want of weights, with tiny matrices."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
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

# SPDX-License-Identifier: Apache-2.0
"""What an update of weights is for, what of it a draft shares, and what is made of it anew."""

import contextlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from tests.support import hosts

hosts.skip_module_unless("vllm_ascend_0_30", "vLLM 0.23.0 sends weights to targets alone")
draft_weights: Any = hosts.module("draft_weights")


class Model(nn.Module):
    """Embeddings, which stand in two places, and a layer."""

    def __init__(self, embeddings: nn.Embedding) -> None:
        super().__init__()
        self.embed_tokens = embeddings
        self.also = nn.ModuleList([embeddings])
        self.layer = nn.Linear(3, 3, bias=False)

    def load_weights(self, weights: Any) -> None:
        parameters = dict(self.named_parameters(remove_duplicate=False))
        for name, weight in weights:
            load = getattr(parameters[name], "weight_loader", None)
            if load is None:
                parameters[name].data.copy_(weight)
            else:
                load(parameters[name], weight)


@pytest.fixture
def worker() -> SimpleNamespace:
    """A worker that is awake, with an engine of transfer that remembers its model."""
    embeddings = nn.Embedding(4, 3)
    target, draft = Model(embeddings), Model(embeddings)
    engine = SimpleNamespace(model=target)

    def set_target(model: Any, _config: Any) -> None:
        engine.model = model

    engine.set_weight_update_target = set_target
    engine.reset_weight_update_target = lambda: set_target(target, None)
    speculative = SimpleNamespace(draft_model_config=None)
    return SimpleNamespace(
        weight_transfer_engine=engine,
        _weight_update_active=False,
        vllm_config=SimpleNamespace(speculative_config=speculative),
        model_runner=SimpleNamespace(get_model=lambda: target),
        proposer=SimpleNamespace(model=draft),
        sleeping_draft=SimpleNamespace(is_asleep=False),
    )


def finish(worker: SimpleNamespace) -> None:
    with draft_weights.finishing(worker):
        pass


def test_each_update_is_for_what_began_it(worker: SimpleNamespace) -> None:
    engine, target = worker.weight_transfer_engine, worker.model_runner.get_model()
    draft_weights.aim_at_draft(worker, worker.proposer)
    assert list(engine.model.modules()) == [
        module for module in worker.proposer.model.modules() if module is not target.embed_tokens
    ]
    # One that failed leaves the draft behind.
    draft_weights.aim(worker)
    assert engine.model is target
    draft_weights.aim_at_draft(worker, worker.proposer)
    finish(worker)
    assert engine.model is target


def test_an_update_under_way_goes_on(worker: SimpleNamespace) -> None:
    engine = worker.weight_transfer_engine
    draft_weights.aim_at_draft(worker, worker.proposer)
    draft, worker._weight_update_active = engine.model, True
    draft_weights.aim(worker)
    assert engine.model is draft


def test_an_update_ends_in_the_drafts_own_configuration(
    worker: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By which vLLM finds how layers are quantised."""
    own = SimpleNamespace(speculative_config=worker.vllm_config.speculative_config)
    current: list[Any] = []

    @contextlib.contextmanager
    def as_current(config: Any) -> Iterator[None]:
        current.append(config)
        yield
        current.pop()

    monkeypatch.setattr(draft_weights, "set_current_vllm_config", as_current)
    worker.proposer._draft_config = own
    draft_weights.aim_at_draft(worker, worker.proposer)
    with draft_weights.finishing(worker):
        assert current == [own]
    draft_weights.aim(worker)
    with draft_weights.finishing(worker):
        assert not current


def test_where_nothing_can_be_sent_it_is_said(worker: SimpleNamespace) -> None:
    for proposer in (None, SimpleNamespace(), SimpleNamespace(model=None)):
        with pytest.raises(NotImplementedError, match=r"no draft that is a model.*alone"):
            draft_weights.aim_at_draft(worker, proposer)
    worker.sleeping_draft.is_asleep = True
    with pytest.raises(RuntimeError, match=r"sleeps.*call wake_up"):
        draft_weights.aim_at_draft(worker, worker.proposer)
    assert worker.weight_transfer_engine.model is worker.model_runner.get_model()


@pytest.mark.parametrize("name", ["embed_tokens.weight", "also.0.weight"])
def test_what_is_shared_stays_the_targets(
    worker: SimpleNamespace, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(draft_weights, "set_current_vllm_config", lambda _: _Nothing())
    draft, target = worker.proposer.model, worker.model_runner.get_model()
    before, weight = target.embed_tokens.weight, target.embed_tokens.weight.detach().clone()
    new = torch.randn(3, 3)
    draft_weights.aim_at_draft(worker, worker.proposer)
    sent = worker.weight_transfer_engine.model
    with pytest.raises(ValueError, match=r"not its target's.*Leave it out"):
        sent.load_weights([(name, weight + 1), ("layer.weight", new)])
    sent.load_weights([(name, weight), ("layer.weight", new)])
    assert torch.equal(draft.layer.weight, new)
    for place in (draft.embed_tokens, draft.also[0], target.embed_tokens):
        assert place.weight is before
    assert torch.equal(before, weight)


class _Nothing:
    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...


class Fused(nn.Module):
    """As vLLM's drafts of mask tokens: the loader makes one matrix of its layer's."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3, bias=False)
        self.made = 0
        self._build_fused_kv_buffers()

    def _build_fused_kv_buffers(self) -> None:
        self.made += 1
        self.fused = 2 * self.layer.weight.detach()
        self.attention = ["by one group's slots"]


class Outer(nn.Module):
    """A draft with such layers."""

    def __init__(self) -> None:
        super().__init__()
        self.model = Fused()

    def load_weights(self, weights: Any) -> None:
        for _, weight in weights:
            self.model.layer.weight.data.copy_(weight)
        self.model._build_fused_kv_buffers()


def test_what_a_draft_makes_of_its_weights_is_made_once_where_graphs_read_it(
    worker: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights come in several parts, and between them it would be made of old ones and new ones."""
    monkeypatch.setattr(draft_weights, "set_current_vllm_config", lambda _: _Nothing())
    draft = Outer()
    fused, made, new = draft.model.fused, draft.model.made, torch.randn(3, 3)
    draft.model.attention = ours = ["by the slots of each layer's group"]
    draft_weights.aim_at_draft(worker, SimpleNamespace(model=draft))
    sent = worker.weight_transfer_engine.model
    sent.load_weights([("layer", new - 1)])
    sent.load_weights([("layer", new)])
    assert draft.model.made == made
    finish(worker)
    assert draft.model.fused is fused
    assert torch.equal(fused, 2 * new)
    assert draft.model.attention is ours, "what is put in its place later on stays"


hosts.skip_module_unless("vllm_ascend_0_30", "vLLM 0.23.0 sends weights to targets alone")
derived_tensors: Any = hosts.module("draft_weights")


class Attention(nn.Module):
    """As vllm-ascend's with keys and values of 8 bits: it prepares its scales once, in a pass."""

    def __init__(self) -> None:
        super().__init__()
        self.k_cache_scale = nn.Parameter(torch.tensor([2.0, 4.0]), requires_grad=False)
        self.impl = SimpleNamespace(_prepare_c8_scales=self.prepare)

    def prepare(self, layer: Any, _device: Any) -> None:
        if not hasattr(layer, "_c8_scales_prepared"):
            layer._c8_k_scale = layer.k_cache_scale.view(1, 2)
            layer._c8_k_inv_scale = 1.0 / layer._c8_k_scale
            layer._c8_scales_prepared = True


def test_scales_that_a_pass_prepared_are_prepared_anew() -> None:
    layer = Attention()
    with torch.inference_mode():
        layer.prepare(layer, None)
    inverse = layer._c8_k_inv_scale
    derived = derived_tensors.DerivedTensors([layer])
    layer.k_cache_scale.data.copy_(torch.tensor([8.0, 16.0]))
    derived.refresh()
    assert layer._c8_k_inv_scale is inverse
    assert inverse.tolist() == [[0.125, 0.0625]]
    assert layer._c8_scales_prepared


def test_what_loading_makes_lies_where_it_was() -> None:
    layer = nn.Linear(2, 2)
    layer.reciprocal = before = torch.tensor([1.0, 2.0])
    derived = derived_tensors.DerivedTensors([layer])
    layer.reciprocal = torch.tensor([3.0, 4.0])
    derived.refresh()
    assert layer.reciprocal is before
    assert before.tolist() == [3.0, 4.0]
    layer.reciprocal = torch.tensor([3.0])
    with pytest.raises(ValueError, match=r"shape \(1,\); it had \(2,\).*start the engine anew"):
        derived.refresh()


def test_attention_in_another_format_is_refused() -> None:
    class Method(derived_tensors.BaseKVCacheMethod):
        def __init__(self) -> None:
            """None of vLLM's."""

    assert not derived_tensors.takes_weights_in_place(nn.Linear(1, 1))
    layer = Attention()
    layer.quant_method = Method()
    assert derived_tensors.takes_weights_in_place(layer)
    del layer.k_cache_scale
    with pytest.raises(NotImplementedError, match=r"by Method;.*in C8.*Start the engine anew"):
        derived_tensors.takes_weights_in_place(layer)

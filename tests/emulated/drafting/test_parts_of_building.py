# SPDX-License-Identifier: Apache-2.0
"""What a draft is built with, on stand-ins; engines judge the whole. No engine."""

from __future__ import annotations

import contextlib
import weakref
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import vllm_ascend.ops  # noqa: F401  before the rest of it: its modules import in a circle
from transformers import PretrainedConfig
from vllm_ascend import ascend_config
from vllm_ascend.ops import rotary_embedding

from mkv_ascend.adapters.common.attention import backends
from mkv_ascend.adapters.common.attention.building import current_model
from mkv_ascend.adapters.common.drafting import assembly as assemblies
from mkv_ascend.adapters.common.drafting import mask_tokens, proposers, strategies
from mkv_ascend.adapters.common.drafting.assembly import Assembly
from mkv_ascend.adapters.common.drafting.draft import AscendDraft
from mkv_ascend.drafting.draft import DraftBuffers
from mkv_ascend.layout.kind import Role
from tests.support import hosts
from tests.support.draft_facts import K, facts

pytestmark = pytest.mark.core


@pytest.mark.parametrize(
    ("kinds", "window"),
    [
        (["sliding_attention", "full_attention"], None),
        (["sliding_attention"] * 2, 16),
        (None, 16),
    ],
    ids=["two kinds", "one kind", "not said"],
)
def test_only_layers_of_one_kind_have_one_window(
    kinds: list[str] | None, window: int | None
) -> None:
    config = PretrainedConfig() if kinds is None else PretrainedConfig(layer_types=kinds)
    model = SimpleNamespace(hf_text_config=config, get_sliding_window=lambda: 16)
    target = SimpleNamespace(
        speculative_config=SimpleNamespace(draft_model_config=model),
        cache_config=SimpleNamespace(sliding_window=128),
    )
    assert hosts.module("drafting.draft_config")._uniform_window(target) == window


def test_layers_that_the_draft_names_are_the_drafts() -> None:
    facts = hosts.module("kv_cache.layer_facts")
    found = [
        facts.facts_of_layer(name, SimpleNamespace(), ["layers.1"]).role.value
        for name in ("layers.0", "layers.1")
    ]
    assert found == ["target", "draft"]


@hosts.only_on("vllm_ascend_0_23", "0.30.0 hashes the draft's configuration itself")
def test_another_draft_has_another_hash() -> None:
    module = hosts.module("patches.start_up")
    (of,) = module.hash_the_draft.functions.values()
    drafts = [None, *(SimpleNamespace(compute_hash=lambda name=name: name) for name in "aab")]
    hashes = [
        of(lambda _config: "vllm's", SimpleNamespace(draft_model_config=draft)) for draft in drafts
    ]
    assert hashes[0] == "vllm's"
    assert [hashes.index(one) for one in hashes] == [0, 1, 1, 3]


@hosts.only_on("vllm_ascend_0_23", "0.30.0 asks nothing about MLA")
def test_dense_layers_are_asked_about_a_model_without_mla() -> None:
    class Model:
        use_mla = True
        hidden_size = 8

    module = hosts.module("patches.target_fixes")
    (spec_of,) = module.spec_without_mla.functions.values()
    config = SimpleNamespace(model_config=Model())
    seen = spec_of(lambda _layer, given: given, None, config).model_config
    assert (seen.use_mla, seen.hidden_size, config.model_config.use_mla) == (False, 8, True)


def test_a_draft_is_built_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the draft, with its own model, tables and AscendConfig; the target keeps its own."""
    target, own = object(), SimpleNamespace(hf_text_config=SimpleNamespace())
    model = torch.nn.Identity()
    config = SimpleNamespace(
        model_config=target, speculative_config=SimpleNamespace(draft_model_config=own)
    )
    seen: list[Any] = []

    def build(_proposer: Any) -> torch.nn.Module:
        assert rotary_embedding._cos_cache is None
        rotary_embedding._cos_cache = "the draft's"
        ascend_config._ASCEND_CONFIG = "the draft's"
        seen.append(current_model())
        return model

    monkeypatch.setattr(rotary_embedding, "_cos_cache", "the target's")
    monkeypatch.setattr(ascend_config, "_ASCEND_CONFIG", "the target's")
    nothing = {"has_recurrent_layers": False, "is_replicated": False, "_reserve_rope_buffers": None}
    for name, answer in {**nothing, "get_layers_from_vllm_config": {}}.items():
        monkeypatch.setattr(proposers, name, lambda *_, answer=answer: answer)
    monkeypatch.setattr(proposers.pipeline, "whole", contextlib.nullcontext)
    monkeypatch.setattr(proposers, "unmoved_experts", contextlib.nullcontext)
    monkeypatch.setattr(
        proposers, "stock", lambda self: SimpleNamespace(_get_model=lambda: build(self))
    )
    proposer = SimpleNamespace(
        vllm_config=config,
        runner=None,
        draft_host=SimpleNamespace(building=lambda: contextlib.nullcontext(seen.append)),
        _create_draft_vllm_config=lambda: config,
    )
    assert proposers._get_model(proposer) is model
    built, completed = seen
    assert completed is model
    assert (built.role, built.builder_config.model_config) == (Role.DRAFT, own)
    assert config.model_config is target
    assert rotary_embedding._cos_cache == ascend_config._ASCEND_CONFIG == "the target's"
    with built.rope_tables.active():
        assert rotary_embedding._cos_cache == "the draft's"


def test_windows_of_drafts_are_those_of_the_adapted_implementation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Backend:
        get_impl_cls = staticmethod(lambda: "vllm-ascend's")

    monkeypatch.setitem(backends.WINDOWS_OF_DRAFTS, "a:b", lambda found: f"over {found}")
    made = backends._with_windows(Backend, "a:b")
    assert made.get_impl_cls() == "over vllm-ascend's"
    assert [backends.has_windows_of_drafts(one) for one in (made, Backend)] == [True, False]


def test_layers_of_mask_tokens_are_causal_one_by_one() -> None:
    layers = [
        SimpleNamespace(self_attn=SimpleNamespace(attn=SimpleNamespace(layer_name=name)))
        for name in "abc"
    ]
    inner = SimpleNamespace(layers=layers)
    each = SimpleNamespace(model=inner, get_draft_attn_causal=lambda: [False, True, False])
    assert mask_tokens.causal_layers(each, PretrainedConfig()) == {"b"}
    alike = SimpleNamespace(model=inner)
    for causal, names in ((True, {"a", "b", "c"}), (False, set())):
        config = PretrainedConfig(dflash_config={"causal": causal})
        assert mask_tokens.causal_layers(alike, config) == names


@hosts.only_on("vllm_ascend_0_30", "0.23.0 does not serve method dspark")
def test_masks_of_dspark_are_made_before_its_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sleep mode of level 2 takes what is made while weights are loaded."""
    from mkv_ascend.adapters.vllm_ascend_0_30.common.drafting import dspark

    rows = torch.zeros(16)
    given = DraftBuffers(token_ids=rows, positions=rows, sample_rows=rows)
    nothing: Any = None
    assembly = Assembly(facts(from_anchor=True), dspark.Markov, nothing, nothing, given)
    made = assembly.inputs.token_ids
    assert made.shape == (2 * K,)
    monkeypatch.setattr(dspark.Markov, "refuse_layers", lambda *_: None)
    monkeypatch.setattr(assemblies, "layers_of", lambda *_: {})
    monkeypatch.setattr(assemblies, "is_replicated", lambda _: False)
    assembly.model_loaded(torch.nn.Module(), None, (), None, AscendDraft)
    assert assembly.draft.buffers.token_ids is made


def test_states_to_join_are_freed_where_no_graph_joins_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The draft alone keeps its buffers: memory that only graphs need goes to the KV cache."""
    rows = torch.zeros(16)
    given = DraftBuffers(token_ids=rows, positions=rows, sample_rows=rows)
    nothing: Any = None
    assembly = Assembly(facts(), strategies.Attention, nothing, nothing, given)
    monkeypatch.setattr(strategies.Attention, "layers_made", lambda *_: None)
    monkeypatch.setattr(strategies.Attention, "refuse_layers", lambda *_: None)
    monkeypatch.setattr(assemblies, "layers_of", lambda *_: {})
    monkeypatch.setattr(assemblies, "is_replicated", lambda _: False)
    monkeypatch.setattr(assemblies, "buffer_of_joined_states", lambda *_: torch.zeros(4))
    assembly.model_loaded(torch.nn.Module(), None, (), None, AscendDraft)
    kept = weakref.ref(assembly.draft.buffers.joined_states)
    assert kept() is not None
    assembly.draft.run_eagerly()
    assert kept() is None


@hosts.only_on("vllm_ascend_0_30", "0.23.0 shares rows itself")
def test_rotary_embeddings_of_drafting_layers_take_positions_as_they_come() -> None:
    from mkv_ascend.adapters.vllm_ascend_0_30.common.drafting.host import leave_positions_whole

    model = torch.nn.Sequential(torch.nn.Identity(), torch.nn.Identity())
    model[0].use_mtp = True
    leave_positions_whole(model)
    assert (model[0].use_mtp, hasattr(model[1], "use_mtp")) == (False, False)


@hosts.only_on("vllm_ascend_0_30", "model runner V2 alone")
@pytest.mark.parametrize(
    ("loaded", "differs", "kept"),
    [(True, True, True), (True, False, False), (False, True, False)],
    ids=["own", "alike", "none in the checkpoint"],
)
def test_a_matrix_of_its_own_is_kept_where_it_differs(
    loaded: bool, differs: bool, kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mkv_ascend.adapters.vllm_ascend_0_30.v2.drafting import loading

    class Head(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lm_head = torch.nn.Linear(2, 3, bias=False)

        def load_weights(self, _weights: Any) -> set[str]:
            return {"lm_head.weight"} if loaded else set()

    monkeypatch.setattr(loading, "ParallelLMHead", torch.nn.Linear)
    monkeypatch.setattr(loading, "get_model_architecture", lambda _: (Head, ""))
    head, target = Head(), torch.nn.Linear(2, 3, bias=False)
    own = head.lm_head
    target.weight.data.copy_(own.weight + differs)
    none: Any = None
    with loading.own_output_matrices(none) as put_back:
        head.load_weights(())
        head.lm_head = target
        put_back(head)
    assert head.lm_head is (own if kept else target)

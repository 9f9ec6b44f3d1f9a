# SPDX-License-Identifier: Apache-2.0
"""Which drafts keep their experts where they are, or need a group of processes for them."""

from types import SimpleNamespace

import pytest
from vllm_ascend.ascend_config import EplbConfig
from vllm_ascend.eplb.adaptor.vllm_adaptor import VllmEplbAdaptor

from mkv_ascend.adapters.common.drafting import draft_building
from mkv_ascend.adapters.common.patches.experts import only_draft_has_experts

TARGET, DRAFT = object(), object()
"""Layers with experts."""


@pytest.fixture
def moved(monkeypatch):
    """Layers that are registered for moves; the target's is already there."""
    monkeypatch.setattr(VllmEplbAdaptor, "_registered_moe_layers", [TARGET])
    return lambda: VllmEplbAdaptor._registered_moe_layers


def asked_for(monkeypatch, tmp_path, *, dynamic, placed):
    monkeypatch.setenv("DYNAMIC_EPLB", "true")
    given = {"dynamic_eplb": dynamic}
    if placed:
        (tmp_path / "map.json").write_text("{}")
        given["expert_map_path"] = str(tmp_path / "map.json")
    # A class of its own arguments on 0.23.0, with fields on 0.30.0rc2.
    of_0_23 = not hasattr(EplbConfig, "__dataclass_fields__")
    asked = EplbConfig(given) if of_0_23 else EplbConfig(**given)
    ascend = SimpleNamespace(eplb_config=asked)
    monkeypatch.setattr(draft_building, "get_ascend_config", lambda: ascend)
    return ascend


def draft_of(method):
    speculative = None if method is None else SimpleNamespace(method=method)
    return SimpleNamespace(speculative_config=speculative)


@pytest.mark.parametrize("method", ["draft_model", "eagle3"])
@pytest.mark.parametrize(("dynamic", "placed"), [(True, False), (False, True), (True, True)])
def test_experts_of_another_model_stay(monkeypatch, tmp_path, moved, method, dynamic, placed):
    ascend = asked_for(monkeypatch, tmp_path, dynamic=dynamic, placed=placed)
    asked = ascend.eplb_config
    with draft_building.unmoved_experts(draft_of(method)):
        VllmEplbAdaptor.register_layer(DRAFT)
        assert not ascend.eplb_config.dynamic_eplb
        assert ascend.eplb_config.expert_map_path is None
    assert moved() == [TARGET]
    assert ascend.eplb_config is asked


@pytest.mark.parametrize("method", ["mtp", None])
def test_experts_of_drafting_layers_move_with_the_targets(monkeypatch, tmp_path, moved, method):
    ascend = asked_for(monkeypatch, tmp_path, dynamic=True, placed=True)
    with draft_building.unmoved_experts(draft_of(method)):
        VllmEplbAdaptor.register_layer(DRAFT)
        assert ascend.eplb_config.dynamic_eplb
        assert ascend.eplb_config.expert_map_path is not None
    assert moved() == [TARGET, DRAFT]


def test_without_moves_nothing_is_changed(monkeypatch, tmp_path, moved):
    ascend = asked_for(monkeypatch, tmp_path, dynamic=False, placed=False)
    asked = ascend.eplb_config
    with draft_building.unmoved_experts(draft_of("draft_model")):
        VllmEplbAdaptor.register_layer(DRAFT)
        assert ascend.eplb_config is asked
    assert moved() == [TARGET, DRAFT]


@pytest.mark.parametrize(
    ("target", "draft", "needed"),
    [
        (False, True, True),
        (True, True, False),
        (False, False, False),
        (True, False, False),
        (False, None, False),
    ],
)
def test_a_group_is_made_for_the_draft_alone(
    target: bool, draft: bool | None, needed: bool
) -> None:
    model = None if draft is None else SimpleNamespace(is_moe=draft)
    config = SimpleNamespace(
        model_config=SimpleNamespace(is_moe=target),
        speculative_config=SimpleNamespace(draft_model_config=model),
    )
    assert only_draft_has_experts(config) is needed
    config.speculative_config = None
    assert only_draft_has_experts(config) is False

# SPDX-License-Identifier: Apache-2.0
"""Copies of experts and maps of them on model runner V1: what is refused, of whom and where."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from mkv_ascend.adapters.vllm_ascend_0_23.host import RULES as OF_0_23
from mkv_ascend.adapters.vllm_ascend_0_30.host import RULES as OF_0_30
from mkv_ascend.attention.entry import DeviceGeneration
from mkv_ascend.checks.about_expert_places import CHECKS
from mkv_ascend.checks.facts import DeviceFacts
from mkv_ascend.checks.gathering import gather

EXPERTS, DENSE = "DeepSeek-V3", "Llama-3.1-8B"
MTP = {"method": "mtp", "num_speculative_tokens": 3}
LOOKUPS = {"method": "ngram", "num_speculative_tokens": 3}
ON_RANKS = {"enable_expert_parallel": True, "tensor_parallel_size": 8}
MOVES, COPIES = {"dynamic_eplb": True}, {"dynamic_eplb": True, "num_redundant_experts": 8}
MAP = {"expert_map_path": "map.json"}
SMALL_STEPS = {"data_parallel_size": 2, "max_num_batched_tokens": 4096}
"""16 ranks, and as many tokens as these dispatch at once."""
DISPATCHED = {"enable_prefill_mc2": True}


def refused(
    models: dict[str, str],
    eplb_config: Any,
    *,
    rules: Any = OF_0_23,
    target: str = EXPERTS,
    speculative: dict[str, Any] | None = MTP,
    ranks: dict[str, Any] = ON_RANKS,
    generation: DeviceGeneration = DeviceGeneration.A2,
    runner: str = "v1",
    more: dict[str, Any] | None = None,
) -> list[str]:
    """What is to be changed, in words."""
    engine: dict[str, Any] = {
        "model": models[target],
        "additional_config": {"eplb_config": eplb_config, **(more or {})},
        **ranks,
    }
    if speculative is not None:
        engine["speculative_config"] = speculative
    device = DeviceFacts(16, 64 << 30, generation, "a test")
    facts = replace(gather(engine, device, rules), runner=runner)
    return [refusal.change for check in CHECKS for refusal in check(facts)]


@pytest.mark.parametrize("rules", [OF_0_23, OF_0_30], ids=["0.23", "0.30"])
@pytest.mark.parametrize("eplb_config", [None, {}, MOVES, "a text", {"num_redundant_experts": 0}])
def test_experts_may_move_without_copies(
    models: dict[str, str], rules: Any, eplb_config: Any
) -> None:
    assert refused(models, eplb_config, rules=rules) == []


@pytest.mark.parametrize(
    ("eplb_config", "name"), [(COPIES, "num_redundant_experts"), (MAP, "expert_map_path")]
)
@pytest.mark.parametrize("speculative", [MTP, LOOKUPS])
@pytest.mark.parametrize("rules", [OF_0_23, OF_0_30], ids=["0.23", "0.30"])
def test_copies_and_maps_are_refused(
    models: dict[str, str], rules: Any, speculative: Any, eplb_config: Any, name: str
) -> None:
    found = refused(models, eplb_config, rules=rules, speculative=speculative)
    assert found[-1] == f"leave {name} out"
    # Of drafting layers of 0.30.0rc2 more is said.
    layers_too = (rules, speculative, eplb_config) == (OF_0_30, MTP, COPIES)
    assert found[:-1] == ([f"leave {name} out, or the draft"] if layers_too else [])


def test_copies_of_drafting_layers_have_no_weights(models: dict[str, str]) -> None:
    """On 0.30.0rc2, on any device."""
    given: dict[str, Any] = {"rules": OF_0_30, "generation": DeviceGeneration.A3}
    assert refused(models, COPIES, **given) == ["leave num_redundant_experts out, or the draft"]
    assert refused(models, MOVES, **given) == []
    for other in (LOOKUPS, {**MTP, "method": "draft_model", "model": models[EXPERTS]}, None):
        assert refused(models, COPIES, **given, speculative=other) == []
    # Its layer says itself where its weights go.
    assert refused(models, COPIES, **given, target="Qwen3-Next-80B-A3B") == []


@pytest.mark.parametrize("eplb_config", [COPIES, MAP])
@pytest.mark.parametrize(
    "given",
    [
        {"generation": DeviceGeneration.A3},
        {"ranks": {**ON_RANKS, **SMALL_STEPS}, "more": DISPATCHED},
        {"speculative": None},
        {"runner": "v2"},
    ],
)
def test_what_0_23_was_not_seen_to_get_wrong_is_not_refused(
    models: dict[str, str], eplb_config: Any, given: dict[str, Any]
) -> None:
    assert refused(models, eplb_config, **given) == []


@pytest.mark.parametrize("eplb_config", [COPIES, MAP])
def test_targets_without_experts_have_none_to_place(
    models: dict[str, str], eplb_config: Any
) -> None:
    assert refused(models, eplb_config, target=DENSE, speculative=LOOKUPS) == []


@pytest.mark.parametrize(
    "given",
    [
        {"ranks": {**ON_RANKS, **SMALL_STEPS}},
        {"ranks": {**ON_RANKS, **SMALL_STEPS, "max_num_batched_tokens": 4097}, "more": DISPATCHED},
        {"ranks": {**ON_RANKS, "data_parallel_size": 2}, "more": DISPATCHED},
        {"ranks": {**ON_RANKS, "max_num_batched_tokens": 4096}, "more": DISPATCHED},
        {
            "target": "Qwen3-Next-80B-A3B",  # 512 experts
            "ranks": {**ON_RANKS, **SMALL_STEPS},
            "more": DISPATCHED,
        },
    ],
)
def test_one_step_that_gathers_is_enough(models: dict[str, str], given: dict[str, Any]) -> None:
    assert refused(models, MAP, **given) == ["leave expert_map_path out"]


def test_a_map_is_not_what_0_30_loads_by(models: dict[str, str]) -> None:
    """On any device, beside a draft."""
    given: dict[str, Any] = {"rules": OF_0_30, "generation": DeviceGeneration.A3}
    assert refused(models, MAP, **given) == ["leave expert_map_path out"]
    assert refused(models, MAP, **given, speculative=None) == []
    assert refused(models, MAP, **given, target=DENSE, speculative=LOOKUPS) == []


def test_copies_count_where_experts_move(models: dict[str, str]) -> None:
    """vllm-ascend 0.23.0 makes no copies otherwise; layers of 0.30.0rc2 stop without room."""
    asked = {"num_redundant_experts": 8}
    assert refused(models, asked) == []
    assert refused(models, asked, rules=OF_0_30, speculative=None) == [
        "leave num_redundant_experts out"
    ]
    assert refused(models, asked, rules=OF_0_30) == ["leave num_redundant_experts out"]
    assert refused(models, asked, rules=OF_0_30, target=DENSE, speculative=None) == []
    assert refused(models, {**asked, **MAP}, rules=OF_0_30, speculative=None) == []
    recorded = {**asked, "expert_map_record_path": "record.json"}
    assert refused(models, recorded) == ["leave num_redundant_experts out"]


@pytest.mark.parametrize("rules", [OF_0_23, OF_0_30], ids=["0.23", "0.30"])
@pytest.mark.parametrize(
    "ranks", [{"tensor_parallel_size": 8}, {"enable_expert_parallel": True}], ids=["whole", "one"]
)
def test_experts_move_between_ranks_that_share_them_out(
    models: dict[str, str], rules: Any, ranks: dict[str, Any]
) -> None:
    for name in ("dynamic_eplb", "expert_map_record_path"):
        found = refused(models, {name: "x"}, rules=rules, ranks=ranks, speculative=None)
        assert found == [f"add it, or leave {name} out"]
    assert refused(models, MAP, rules=rules, ranks=ranks) == []
    assert refused(models, MOVES, rules=rules, ranks=ranks, target=DENSE, speculative=None) == []

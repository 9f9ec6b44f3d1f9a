# SPDX-License-Identifier: Apache-2.0
"""What is refused on model runner V2, from options and config.json files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mkv_ascend.adapters import installed as installed_host
from mkv_ascend.attention.entry import DeviceGeneration
from mkv_ascend.checks.about_runner import WORDS, runner_of
from mkv_ascend.checks.facts import DeviceFacts
from mkv_ascend.checks.judging import judge
from mkv_ascend.checks.refusal import RefusedError
from mkv_ascend.commands.runner_option import UnknownRunnerError, runner_asked_for

TARGET = "Llama-3.1-8B"
COUNTS = {"num_speculative_tokens_per_batch_size": [[1, 2, 3], [3, 8, 1]]}
DEVICE = DeviceFacts(8, 64 << 30, DeviceGeneration.A2, "a test")
RULES = installed_host.adapters()[0].RULES
NOT_ON_V1 = {
    WORDS["several_axes"]: "choose a text-only model of the family",
    WORDS["adaptive_verification"]: "per_batch_size",
    WORDS["eplb"]: "leave --enable-eplb out",
    WORDS["prefill_context_parallel"]: "leave prefill_context_parallel_size out",
}
"""What is advised where model runner V1 lacks it too."""


def asked_of_v2(engine: dict[str, Any], runner: str = "v2") -> set[str]:
    """What is refused because of the runner, in the words of the engine."""
    try:
        judge(engine, DEVICE, RULES, runner)
    except RefusedError as error:
        found = [refusal for refusal in error.refusals if refusal.code == "runner"]
        for refusal in found:
            name = refusal.asked.partition(" with drafts of mkv_ascend")[0]
            change = NOT_ON_V1.get(name, "VLLM_USE_V2_MODEL_RUNNER=0")
            assert change in refusal.change
            assert (name in NOT_ON_V1) == ("VLLM_USE_V2_MODEL_RUNNER" not in refusal.change)
        return {refusal.asked.partition(" with drafts of mkv_ascend")[0] for refusal in found}
    return set()


IN_SHARES = {"decode_context_parallel_size": 2, "tensor_parallel_size": 4}
REPLICATED = {"mkv_ascend": {"kv_cache": {"replicate_draft": True}}}
SPLIT = {"finegrained_tp_config": {"lmhead_tensor_parallel_size": 2}}
SHARES = {"enable_flashcomm1": True}
ON_RANKS = {"enable_expert_parallel": True, "tensor_parallel_size": 2}


def engine(target: str, draft: str, speculative: dict[str, Any], **options: Any) -> dict[str, Any]:
    config = {"model": draft, "num_speculative_tokens": 3, **speculative}
    return {"model": target, "max_model_len": 1024, "speculative_config": config, **options}


@pytest.mark.parametrize(
    ("options", "speculative", "refused"),
    [
        ({}, {}, None),
        ({"data_parallel_size": 2}, {}, None),
        ({"pipeline_parallel_size": 2}, {}, None),
        ({"pipeline_parallel_size": 2, "async_scheduling": True}, {}, None),
        ({"pipeline_parallel_size": 2, "async_scheduling": False}, {}, "stages_in_turn"),
        ({"pipeline_parallel_size": 2}, {"disable_padded_drafter_batch": True}, "stages_in_turn"),
        ({"async_scheduling": False}, {}, None),
        (IN_SHARES, {}, None),
        (IN_SHARES, {"method": "eagle"}, None),
        (IN_SHARES, {"method": "eagle3"}, None),
        (IN_SHARES, {"method": "mtp"}, None),
        ({**IN_SHARES, "additional_config": REPLICATED}, {}, None),
        (IN_SHARES, {"method": "dflash"}, None),
        ({"prefill_context_parallel_size": 2}, {}, "prefill_context_parallel"),
        ({"enable_eplb": True}, {}, None),
        ({"enable_eplb": True, "eplb_config": {"num_redundant_experts": 2}}, {}, "eplb"),
        ({"additional_config": SPLIT}, {}, "split_vocabulary"),
        ({"additional_config": SHARES}, {}, None),
        ({"additional_config": SHARES, **ON_RANKS}, {}, "sequence_parallel"),
        ({"enable_lora": True}, {}, None),
        ({}, {"enable_adaptive_verification": True}, "adaptive_verification"),
        ({}, {"parallel_drafting": True}, "parallel_drafting"),
    ],
)
def test_options(
    models: dict[str, str],
    options: dict[str, Any],
    speculative: dict[str, Any],
    refused: str | None,
) -> None:
    asked = engine(models[TARGET], models[TARGET], speculative, **options)
    assert asked_of_v2(asked) == ({WORDS[refused]} if refused else set())
    assert asked_of_v2(asked, "v1") == set()


@pytest.mark.parametrize(
    ("target", "draft", "speculative", "refused"),
    [
        (TARGET, "LFM2-1.2B", {}, set()),
        (TARGET, "LFM2-1.2B", COUNTS, set()),
        ("LFM2-1.2B", TARGET, {}, set()),
        ("DeepSeek-V3", "DeepSeek-V3", {"method": "mtp"}, set()),
        ("DeepSeek-V3", "DeepSeek-V3", {"method": "mtp", **COUNTS}, set()),
        (TARGET, TARGET, COUNTS, set()),
        ("v4-whole", "v4-draft", {}, set()),
        ("v4-whole", "v4-draft", COUNTS, set()),
        ("v4-whole", "v4-whole", {"method": "mtp"}, set()),
        ("step3.5", "step3.5", {"method": "mtp"}, {"layers_in_turn"}),
        ("step3.5", TARGET, {}, set()),
        (
            "Qwen3-Next-80B-A3B",
            "Qwen3-Next-80B-A3B",
            {"method": "mtp", **COUNTS},
            set(),
        ),
        ("LFM2-1.2B", TARGET, COUNTS, set()),
        ("Qwen3-Next-80B-A3B", "Qwen3-Next-80B-A3B", {"method": "mtp"}, set()),
    ],
)
def test_models(
    models: dict[str, str], target: str, draft: str, speculative: dict[str, Any], refused: set[str]
) -> None:
    asked = engine(models[target], models[draft], speculative)
    assert asked_of_v2(asked) == {WORDS[name] for name in refused}


@pytest.mark.parametrize(
    ("target", "draft", "method", "refused"),
    [
        ("DeepSeek-V3", "DeepSeek-V3", "mtp", False),
        ("DeepSeek-V3", "DeepSeek-V3", "draft_model", False),
        (TARGET, "DeepSeek-V3", "draft_model", False),
        ("DeepSeek-V3", TARGET, "eagle3", False),
        ("DeepSeek-V3", "DeepSeek-V3", "eagle3", True),
        ("sparse", TARGET, "draft_model", False),
        ("sparse", "DeepSeek-V3", "draft_model", False),
        ("sparse", "sparse", "mtp", False),
        ("sparse", "sparse", "draft_model", True),
        ("DeepSeek-V3", "sparse", "mtp", True),
        ("Qwen3-Next-80B-A3B", TARGET, "draft_model", True),
        ("gemma-3-27b", TARGET, "draft_model", True),
        ("v4-whole", TARGET, "draft_model", True),
    ],
)
def test_models_where_ranks_share_keys(
    models: dict[str, str], target: str, draft: str, method: str, *, refused: bool
) -> None:
    asked = engine(models[target], models[draft], {"method": method}, **IN_SHARES)
    assert asked_of_v2(asked) == ({WORDS["decode_context_parallel"]} if refused else set())


@pytest.mark.parametrize(
    ("target", "draft", "method", "refused"),
    [
        ("DeepSeek-V3", "DeepSeek-V3", "mtp", False),
        ("Qwen3-Next-80B-A3B", "Qwen3-Next-80B-A3B", "mtp", False),
        ("DeepSeek-V3", "DeepSeek-V3", "draft_model", True),
        ("DeepSeek-V3", TARGET, "eagle3", False),
        ("v4-whole", "v4-whole", "mtp", True),
    ],
)
def test_experts_that_move(
    models: dict[str, str], target: str, draft: str, method: str, *, refused: bool
) -> None:
    asked = engine(models[target], models[draft], {"method": method}, enable_eplb=True)
    assert asked_of_v2(asked) == ({WORDS["eplb"]} if refused else set())


IMAGES = {"vision_config": {"hidden_size": 64}}
AXES = {"rope_parameters": {"rope_type": "default", "mrope_section": [16, 24, 24]}}


@pytest.mark.parametrize(
    ("draft", "method", "refused"),
    [
        ({}, "draft_model", set()),
        (AXES, "draft_model", {"several_axes"}),
        (AXES, "eagle3", set()),
    ],
)
def test_a_target_that_takes_images(
    models: dict[str, str],
    tmp_path: Path,
    draft: dict[str, Any],
    method: str,
    refused: set[str],
) -> None:
    values = json.loads(Path(models[TARGET], "config.json").read_text())
    for name, more in (("target", {**IMAGES, **AXES}), ("draft", draft)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps({**values, **more}))
    asked = engine(str(tmp_path / "target"), str(tmp_path / "draft"), {"method": method})
    assert asked_of_v2(asked) == {WORDS[name] for name in refused}


def test_the_variable_counts_where_the_host_has_that_runner() -> None:
    asked = {"VLLM_USE_V2_MODEL_RUNNER": "1"}
    assert runner_of(asked, ("v1", "v2")) == "v2"
    assert runner_of(asked, ("v1",)) == "v1"
    assert runner_of({"VLLM_USE_V2_MODEL_RUNNER": "0"}, ("v1", "v2")) == "v1"
    assert runner_of({}, ("v1", "v2")) == "v1"


def test_a_runner_that_the_host_lacks_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installed_host, "runners", lambda: ("v1",))
    with pytest.raises(UnknownRunnerError, match="--runner v2: the installed vllm-ascend has v1"):
        runner_asked_for("v2", "check")


def refused_over_stages(asked: dict[str, Any], runner: str) -> list[str]:
    """What is refused because of pipeline stages."""
    try:
        judge({**asked, "pipeline_parallel_size": 2}, DEVICE, RULES, runner)
    except RefusedError as error:
        return [str(refusal) for refusal in error.refusals if refusal.code == "pipeline"]
    return []


@pytest.mark.parametrize(
    ("target", "draft", "said"),
    [
        (TARGET, TARGET, None),
        ("LFM2-1.2B", TARGET, None),
        (TARGET, "LFM2-1.2B", None),
        ("granite4", TARGET, "weights of all stages"),
    ],
)
@pytest.mark.parametrize("runner", ["v1", "v2"])
def test_states_over_stages(
    models: dict[str, str], target: str, draft: str, said: str | None, runner: str
) -> None:
    found = refused_over_stages(engine(models[target], models[draft], {}), runner)
    assert len(found) == (said is not None)
    assert said is None or said in found[0]


@pytest.mark.parametrize("runner", ["v1", "v2"])
@pytest.mark.parametrize("drafts", [True, False])
def test_logits_processors(models: dict[str, str], runner: str, drafts: bool) -> None:
    asked = engine(models[TARGET], models[TARGET], {}, logits_processors=["a.b:C"])
    if not drafts:
        del asked["speculative_config"]
    try:
        judge(asked, DEVICE, RULES, runner)
        found = ()
    except RefusedError as error:
        found = error.refusals
    expected = {"v1": ["tokens that it verifies"] * drafts, "v2": ["model runner V2"]}[runner]
    assert [refusal.code for refusal in found] == ["logits-processors"] * len(expected)
    assert all(words in refusal.asked for words, refusal in zip(expected, found, strict=True))


@pytest.mark.parametrize("runner", ["v1", "v2"])
@pytest.mark.parametrize("drafts", [True, False])
def test_replayed_states(models: dict[str, str], runner: str, drafts: bool) -> None:
    asked = engine(models["LFM2-1.2B"], models["LFM2-1.2B"], {}, use_replayssm=True)
    if not drafts:
        del asked["speculative_config"]
    try:
        judge(asked, DEVICE, RULES, runner)
        found = []
    except RefusedError as error:
        found = [refusal.code for refusal in error.refusals]
    assert found == ["host-option"] * drafts

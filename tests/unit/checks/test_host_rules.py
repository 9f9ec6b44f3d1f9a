# SPDX-License-Identifier: Apache-2.0
"""What checks know of a host, against its sources, and what follows from it on either host."""

from __future__ import annotations

import ast
import dataclasses
import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import transformers  # noqa: F401 - once, or every plan asks a process of its own

from mkv_ascend.adapters import installed as installed_host
from mkv_ascend.attention.entry import DeviceGeneration
from mkv_ascend.checks import from_config
from mkv_ascend.checks.block_sizes import BlockSizes
from mkv_ascend.checks.host_rules import HostRules
from mkv_ascend.checks.judging import judge
from mkv_ascend.checks.planning_inputs import Asked
from mkv_ascend.checks.refusal import RefusedError
from mkv_ascend.layout.component import Storage
from mkv_ascend.layout.kind import Kind, Role
from tests.support.host_checks import DEVICE, EQUAL_PAGES, SHARED, refused
from tests.support.mistaken_models import CHANGED


def constants(module: str) -> dict[str, Any]:
    """Names that an installed module sets to literals, without importing it."""
    found = find_spec(module.partition(".")[0])
    assert found is not None
    assert found.submodule_search_locations
    parts = module.split(".")[1:]
    path = Path(found.submodule_search_locations[0], *parts).with_suffix(".py")
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {
        target.id: node.value.value
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
        for target in node.targets
        if isinstance(target, ast.Name)
    }


def test_quantisations_are_those_of_the_installed_platform() -> None:
    found = find_spec("vllm_ascend")
    assert found is not None
    assert found.submodule_search_locations
    tree = ast.parse(Path(found.submodule_search_locations[0], "platform.py").read_text())
    (listed,) = (
        node.value.elts
        for node in ast.walk(tree)
        if isinstance(node, ast.AnnAssign)
        and isinstance(node.target, ast.Name)
        and node.target.id == "supported_quantization"
        and isinstance(node.value, ast.List)
    )
    named = constants("vllm_ascend.utils")
    names = [named[x.id] if isinstance(x, ast.Name) else ast.literal_eval(x) for x in listed]
    assert installed_host.rules().quantizations == tuple(names)


def test_quantised_weights_are_refused_by_the_hosts_list(
    models: dict[str, str],
) -> None:
    engine = {"model": models["Llama-3.1-8B"], "quantization": "mxfp8"}
    assert set(refused(engine, SHARED)) == {"quantization"}
    newest = dataclasses.replace(DEVICE, generation=DeviceGeneration.A5)
    assert refused(engine, EQUAL_PAGES, newest) == {}
    assert "Ascend A2" in refused(engine, EQUAL_PAGES)["weight-format"]
    assert "mxfp8" in refused({**engine, "quantization": "gptq"}, EQUAL_PAGES)["quantization"]


SIMPLE = {"kv_connector": "SimpleCPUOffloadConnector", "kv_role": "kv_both"}
IN_MANY = {"connectors": [SIMPLE]}
MANY = {
    "kv_connector": "MultiConnector",
    "kv_role": "kv_both",
    "kv_connector_extra_config": IN_MANY,
}


@pytest.mark.parametrize(
    ("target", "draft", "shared", "equal_pages"),
    [
        ("Llama-3.1-8B", None, None, None),
        ("gemma-3-1b", None, None, "need 7 KV groups"),
        ("Llama-3.1-8B", "llama-draft", None, None),
        ("Llama-3.1-8B", "window-head", None, "need 9 KV groups"),
        ("LFM2-1.2B", None, "layers with states", "KV groups"),
    ],
)
@pytest.mark.parametrize("option", [SIMPLE, MANY, None], ids=["alone", "among many", "by size"])
def test_offload_that_the_host_refuses_these_groups(
    option: dict[str, Any] | None,
    target: str,
    draft: str | None,
    shared: str | None,
    equal_pages: str | None,
    models: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The adapters say it behind all weights (``kv_cache/kv_transfer.py``)."""
    engine: dict[str, Any] = {"model": models[target], "max_model_len": 4096}
    if draft is not None:
        speculative = {"model": models[draft], "num_speculative_tokens": 3}
        engine["speculative_config"] = {"method": "eagle", **speculative}
    if option is None:
        monkeypatch.setenv("VLLM_USE_SIMPLE_KV_OFFLOAD", "1")
        engine["kv_offloading_size"] = 8
    else:
        engine["kv_transfer_config"] = option
    for rules, said in ((SHARED, shared), (EQUAL_PAGES, equal_pages)):
        try:
            judge(engine, DEVICE, rules)
        except RefusedError as error:
            (refusal,) = error.refusals
            assert refusal.code == "kv-connector"
            assert said is not None
            assert said in refusal.asked
        else:
            assert said is None


FAMILIES = [
    # Class, options beside the model, whether 0.23.0 refuses, whether 0.30.0rc2 does.
    ("LongcatFlashForCausalLM", {}, False, True),
    ("Step3p5ForCausalLM", {}, False, False),
    ("Step3p5ForCausalLM", {"dtype": "float32"}, False, True),
    ("PanguUltraMoEForCausalLM", {"speculative_config": {"method": "mtp"}}, False, False),
    ("ExaoneMoEForCausalLM", {}, False, True),
    ("ExaoneMoeForCausalLM", {}, True, False),
    ("LlamaForCausalLM", {}, False, False),
]


@pytest.mark.parametrize(("name", "options", "shared", "equal_pages"), FAMILIES)
@pytest.mark.parametrize("role", ["target", "draft"])
def test_families_that_a_host_does_not_serve(
    role: str,
    name: str,
    options: dict[str, Any],
    shared: bool,
    equal_pages: bool,
    tmp_path: Path,
    models: dict[str, str],
) -> None:
    values = json.loads(Path(models["Llama-3.1-8B"], "config.json").read_text())
    values |= {"architectures": [name], "num_nextn_predict_layers": 1}
    (tmp_path / "config.json").write_text(json.dumps(values))
    engine: dict[str, Any] = {"model": str(tmp_path), **options}
    if role == "draft" and "speculative_config" not in options:
        engine["model"] = models["Llama-3.1-8B"]
        engine["speculative_config"] = {"method": "draft_model", "model": str(tmp_path)}
    if "speculative_config" in engine:
        engine["speculative_config"] = {**engine["speculative_config"], "num_speculative_tokens": 3}
    assert ("family" in refused(engine, SHARED)) is shared
    assert ("family" in refused(engine, EQUAL_PAGES)) is equal_pages


@pytest.mark.parametrize(
    ("options", "is_refused"),
    [
        ({}, True),
        ({"block_size": 64}, True),
        ({"distributed_executor_backend": "uni", "tensor_parallel_size": 1}, True),
        ({"data_parallel_size": 2}, True),
        ({"distributed_executor_backend": "mp"}, False),
        ({"tensor_parallel_size": 8}, False),
    ],
    ids=str,
)
def test_deepseek_v4_needs_a_process_of_its_own_on_one_host(
    options: dict[str, Any],
    is_refused: bool,
    models: dict[str, str],
) -> None:
    engine = {"model": models["v4-whole"], **options}
    assert "v4-whole" in CHANGED
    assert ("executor" in refused(engine, EQUAL_PAGES)) is is_refused
    assert "executor" not in refused(engine, SHARED)
    if is_refused:
        assert "--distributed-executor-backend mp" in refused(engine, EQUAL_PAGES)["executor"]


@pytest.mark.parametrize(
    "speculative",
    [{"method": "draft_model", "model": "v4-draft"}, {"method": "mtp"}, None],
    ids=str,
)
def test_deepseek_v4_takes_layers_of_other_models(
    speculative: dict[str, Any] | None, models: dict[str, str]
) -> None:
    engine: dict[str, Any] = {"model": models["v4-whole"], "distributed_executor_backend": "mp"}
    if speculative is not None:
        draft = {"model": models["v4-draft"]} if "model" in speculative else {}
        engine["speculative_config"] = {**speculative, "num_speculative_tokens": 3, **draft}
    assert refused(engine, EQUAL_PAGES) == refused(engine, SHARED) == {}


@pytest.mark.parametrize("option", [{"kv_transfer_config": {}}, {"kv_offloading_size": 8}, {}])
@pytest.mark.parametrize("method", ["draft_model", "mtp"])
def test_deepseek_v4_takes_no_draft_model_with_transfer_on_one_host(
    option: dict[str, Any], method: str, models: dict[str, str]
) -> None:
    """There the connector leaves the caches to vllm-ascend."""
    speculative: dict[str, Any] = {"method": method, "num_speculative_tokens": 3}
    if method == "draft_model":
        speculative["model"] = models["v4-draft"]
    engine = {
        "model": models["v4-whole"],
        "distributed_executor_backend": "mp",
        "speculative_config": speculative,
        **option,
    }
    expected = {"draft-caches"} if option and method == "draft_model" else set()
    assert {code for code in refused(engine, EQUAL_PAGES) if code == "draft-caches"} == expected
    assert "draft-caches" not in refused(engine, SHARED)


def test_caches_that_a_host_arranges_itself_are_not_planned_by_numbers(
    models: dict[str, str],
) -> None:
    asked = Asked({"model": models["v4-whole"], "max_model_len": 4096})
    with pytest.raises(from_config.NotFromNumbersError, match="DeepSeek-V4 itself"):
        from_config.find(asked, EQUAL_PAGES)
    assert from_config.find(asked, SHARED).inputs.layers


def test_blocks_of_a_hybrid_model_hold_a_state_where_the_host_pads_pages(
    models: dict[str, str],
) -> None:
    """Qwen3-Next on 0.30.0: Platform._align_hybrid_block_size gives 640 tokens of 2 KiB."""
    asked = Asked({"model": models["Qwen3-Next-80B-A3B"], "max_model_len": 32768})
    found = from_config.find(asked, EQUAL_PAGES).inputs.layers
    assert {layer.layout.storage for layer in found} == {Storage.PACKED}
    attention = [layer.layout for layer in found if layer.layout.kind is not Kind.MAMBA]
    assert {layout.tokens_per_block for layout in attention} == {640}
    assert {layout.page_bytes for layout in attention} == {640 * 2048}
    contiguous = from_config.find(asked, SHARED).inputs.layers
    assert Storage.PACKED not in {layer.layout.storage for layer in contiguous}
    # Only pages differ: a dense draft's layers are not padded to them.
    draft = {"method": "eagle3", "model": models["eagle3-2x128"]}
    engine = {**asked.engine, "speculative_config": {**draft, "num_speculative_tokens": 3}}
    both = from_config.find(Asked(engine), EQUAL_PAGES).inputs.layers
    small = min(layer.layout.page_bytes for layer in both)
    assert small == 640 * 1024


@pytest.mark.parametrize("rules", [SHARED, EQUAL_PAGES])
@pytest.mark.parametrize(
    ("target", "draft", "caching", "asked"),
    [
        ("Qwen3-0.6B", "Qwen3-Next-80B-A3B", None, 0),
        ("Qwen3-0.6B", "Qwen3-Next-80B-A3B", False, 1),
        ("Qwen3-Next-80B-A3B", "Qwen3-0.6B", None, 1),
    ],
)
def test_a_block_is_asked_for_beside_states_unless_their_manager_is_ours(
    rules: HostRules,
    target: str,
    draft: str,
    caching: bool | None,
    asked: int,
    models: dict[str, str],
) -> None:
    """As ``kv_groups.asked_beside_states``: ours are states of a draft beside prefix caching."""
    speculation = {"method": "draft_model", "model": models[draft], "num_speculative_tokens": 3}
    engine = {"model": models[target], "speculative_config": speculation, "max_model_len": 4096}
    given = Asked({**engine, "enable_prefix_caching": caching})
    layers = from_config.find(given, rules).inputs.layers
    states = [layer for layer in layers if layer.layout.kind is Kind.MAMBA]
    assert {layer.retention.asked_blocks for layer in states} == {asked}
    assert {layer.retention.extra_blocks for layer in states} == {3}


def test_states_of_a_draft_stand_for_all_of_a_request_beside_hits_too() -> None:
    sizes = BlockSizes(640, 4096)
    assert [sizes.tokens_of_states(role) for role in Role] == [4096, 4096]
    kept = sizes.with_hits_beside_states()
    tokens = {role: kept.tokens_of_states(role) for role in Role}
    assert tokens == {Role.TARGET: 640, Role.DRAFT: 4096}


@pytest.mark.parametrize(("rules", "name"), [(SHARED, "conv"), (EQUAL_PAGES, "short_conv")])
def test_short_convolutions_have_the_hosts_name(
    rules: HostRules, name: str, models: dict[str, str]
) -> None:
    """LFM2 in vLLM: model_executor/models/lfm2.py, the prefix of ShortConv."""
    asked = Asked({"model": models["LFM2-1.2B"], "max_model_len": 4096})
    layers = [layer.layout for layer in from_config.find(asked, rules).inputs.layers]
    named = [layout.layer for layout in layers if layout.kind is Kind.MAMBA]
    assert named
    assert {layer.rpartition(".")[2] for layer in named} == {name}


@pytest.mark.parametrize(
    ("given", "batches"),
    [
        ({}, 2),
        ({"async_scheduling": False}, 1),
        ({"speculative_config": {"method": "ngram", "num_speculative_tokens": 3}}, 1),
    ],
)
def test_a_host_may_count_all_batches_under_way(
    given: dict[str, Any], batches: int, models: dict[str, str]
) -> None:
    """``VllmConfig.max_in_flight_tokens`` of vLLM 0.30.0, whose default schedules ahead."""
    steps = {"max_model_len": 4096, "max_num_batched_tokens": 512}
    asked = Asked({"model": models["gpt-oss-20b"], **steps, **given})
    assert from_config.find(asked, SHARED).inputs.admitted_tokens == 512
    assert from_config.find(asked, EQUAL_PAGES).inputs.admitted_tokens == 512 * batches


def test_every_rule_differs_between_hosts() -> None:
    """One that does not is no rule of a host."""
    for field in dataclasses.fields(HostRules):
        assert getattr(SHARED, field.name) != getattr(EQUAL_PAGES, field.name)


def test_hits_that_a_recurrent_draft_cannot_read_are_refused_where_they_are_on_by_default(
    models: dict[str, str],
) -> None:
    draft = {"model": models["LFM2-350M"], "num_speculative_tokens": 3}
    engine = {"model": models["LFM2-1.2B"], "speculative_config": draft}
    assert refused(engine, SHARED) == refused(engine, EQUAL_PAGES) == {}
    engine["data_parallel_size"] = 2
    said = refused(engine, EQUAL_PAGES).keys() - refused(engine, SHARED).keys()
    assert said == {"recurrent-draft-option"}
    assert "--no-enable-prefix-caching" in refused(engine, EQUAL_PAGES)["recurrent-draft-option"]
    without = {**engine, "enable_prefix_caching": False}
    assert "recurrent-draft-option" not in refused(without, EQUAL_PAGES)


def test_kimi_delta_attention_is_taken_back_where_the_host_keeps_states_of_drafts(
    models: dict[str, str], tmp_path: Path
) -> None:
    published = models["Kimi-Linear-48B-A3B"]
    config = json.loads((Path(published) / "config.json").read_text())
    # The output gate of Kimi-K3.
    config["linear_attn_config"]["use_full_rank_gate"] = True
    (tmp_path / "config.json").write_text(json.dumps(config))
    speculation = {"method": "ngram", "num_speculative_tokens": 3}

    def said(model: str, rules: HostRules) -> str:
        found = refused({"model": model, "speculative_config": speculation}, rules)
        return found.get("target-states", "")

    assert "cannot take back" in said(published, SHARED)
    assert "cannot take back" in said(str(tmp_path), SHARED)
    assert "gates of full rank alone" in said(published, EQUAL_PAGES)
    assert said(str(tmp_path), EQUAL_PAGES) == ""


@pytest.mark.parametrize(
    ("short_of", "more", "is_refused"),
    [
        (1, {}, True),
        (0, {}, False),
        (1, {"enable_prefix_caching": False}, False),
        (1, {"long_prefill_token_threshold": 64}, False),  # no chunk would be taken back
    ],
)
def test_steps_that_reach_the_end_of_a_block_without_what_drafts_keep(
    short_of: int, more: dict[str, Any], is_refused: bool, models: dict[str, str]
) -> None:
    draft = {"model": models["LFM2-350M"], "num_speculative_tokens": 3}
    engine = {"model": models["LFM2-1.2B"], "speculative_config": draft, "max_model_len": 4096}
    facts, _ = judge({**engine, "max_num_batched_tokens": 8192}, DEVICE, EQUAL_PAGES)
    assert facts.plan is not None
    block = min(group.block_size for group in facts.plan.grouping.groups)
    asked = {**engine, **more, "max_num_batched_tokens": block + 1 - short_of, "max_num_seqs": 8}
    if not is_refused:
        judge(asked, DEVICE, EQUAL_PAGES)
        return
    with pytest.raises(RefusedError, match=f"step-size.* {block + 1} tokens or more"):
        judge(asked, DEVICE, EQUAL_PAGES)

# SPDX-License-Identifier: Apache-2.0
"""Every method with every kind of draft: which pairs are refused, and what is said."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from mkv_ascend.adapters import installed as installed_host
from mkv_ascend.checks.speculation import METHODS
from tests.support.host_checks import refused
from tests.support.safetensors_files import NUMBERS, write_tensors

HEAD = ("fc.weight", "layers.0.self_attn.q_proj.weight")
MODEL = ("model.embed_tokens.weight", "model.layers.0.self_attn.q_proj.weight")
DEEPSEEK = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "deepseek_v3",
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "num_nextn_predict_layers": 1,
}


class Kind(NamedTuple):
    """``config``: of a draft. ``tensors``: names; none: no files. ``fits``: methods."""

    config: dict[str, Any]
    tensors: tuple[str, ...]
    fits: frozenset[str]


def kind(architecture: str, tensors: tuple[str, ...], *fits: str, **config: Any) -> Kind:
    """A draft of this class."""
    return Kind({"architectures": [architecture], **config}, tensors, frozenset(fits))


KINDS = {
    "model": kind("LlamaForCausalLM", MODEL, "draft_model"),
    # Published EAGLE heads name Llama's class; of DFlash there is no such one.
    "model, no files": kind("LlamaForCausalLM", (), "draft_model", "eagle", "eagle3"),
    "model with MTP": kind("DeepseekV3ForCausalLM", MODEL, "draft_model", "mtp", **DEEPSEEK),
    "model, MTP by its files": kind(
        "Qwen3NextForCausalLM", (*MODEL, "mtp.fc.weight"), "draft_model", "mtp"
    ),
    "DeepSeek-V4": kind(
        "DeepseekV4ForCausalLM", MODEL, "draft_model", "dspark", compress_ratios=[0, 4]
    ),
    "EAGLE": kind("EagleLlamaForCausalLM", HEAD, "eagle"),
    "EAGLE without a name": kind("LlamaForCausalLM", HEAD, "eagle"),
    "EAGLE of DeepSeek": kind("EagleDeepSeekMTPModel", HEAD, "eagle"),
    "EAGLE-3": kind("LlamaForCausalLMEagle3", HEAD, "eagle3"),
    "EAGLE-3, another name": kind("Eagle3LlamaForCausalLM", (), "eagle3"),
    "EAGLE-3 without a name": kind("LlamaForCausalLM", (*HEAD, "d2t"), "eagle3"),
    "P-EAGLE": kind("PEagleDraftModel", HEAD, "eagle3"),
    "P-EAGLE, another name": kind("PeagleLlamaForCausalLM", HEAD, "eagle3"),
    "DFlash": kind("DFlashDraftModel", (), "dflash"),
    "DFlash2": kind("DFlash2DraftModel", (), "dflash"),
    "DFlash of Laguna": kind("DFlashLagunaForCausalLM", (), "dflash"),
    # vLLM takes this class for method dspark, whatever of these is asked for.
    "DSpark": kind("Qwen3DSparkModel", (), "dspark", "draft_model", "medusa"),
    "DSpark of DeepSeek": kind("DSparkDraftModel", (), "dspark"),
    "MTP": kind("Qwen3NextMTP", (), "mtp"),
    "MTP of DeepSeek": kind("DeepSeekMTPModel", (), "mtp"),
    "Gemma 4's assistant": kind(
        "Gemma4AssistantForCausalLM", (), "mtp", model_type="gemma4_assistant"
    ),
    "Medusa": kind("MedusaModel", (), "medusa"),
    "MLP speculator": kind("MLPSpeculatorPreTrainedModel", ()),
}
LOOKED_UP = ("ngram", "ngram_gpu", "suffix", "extract_hidden_states")
"""They read no draft, whatever model is named."""


@pytest.fixture
def empty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder without the name of a test, in which vLLM would look for a method."""
    return tmp_path_factory.mktemp("empty")


def said(target: str, folder: Path, found: Kind, method: str | None) -> dict[str, str]:
    """What is refused of a draft; its folder has no name that vLLM would go by."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({**NUMBERS, **found.config}))
    if found.tensors:
        write_tensors(folder / "model.safetensors", dict.fromkeys(found.tensors, (1,)))
    asked = {"model": str(folder), "num_speculative_tokens": 3}
    if method is not None:
        asked["method"] = method
    engine = {"model": target, "speculative_config": asked}
    return refused(engine, installed_host.rules())


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", KINDS)
def test_methods_and_kinds(name: str, method: str, models: dict[str, str], empty: Path) -> None:
    found = KINDS[name]
    codes = said(models["Llama-3.1-8B"], empty / "draft", found, method)
    fits = method in LOOKED_UP or method in found.fits
    assert ("draft-class" not in codes) == fits, codes.get("draft-class")


@pytest.mark.parametrize(
    ("name", "method", "change"),
    [
        ("DFlash", None, 'write "method": "dflash"'),
        ("EAGLE-3", "draft_model", 'write "method": "eagle3"'),
        ("EAGLE-3", "mtp", 'write "method": "eagle3"'),
        ("EAGLE-3", "eagle", 'write "method": "eagle3"'),
        ("model", "eagle3", 'write "method": "draft_model", or choose a draft of method eagle3'),
        ("model, no files", "dflash", "choose a draft of method dflash"),
        ("MLP speculator", "eagle", "Change: choose a draft of method eagle."),
    ],
)
def test_what_to_change(
    name: str, method: str | None, change: str, models: dict[str, str], empty: Path
) -> None:
    codes = said(models["Llama-3.1-8B"], empty / "draft", KINDS[name], method)
    assert change in codes["draft-class"]


@pytest.mark.parametrize("name", KINDS)
def test_a_configuration_that_vllm_has_rewritten_is_judged_alike(
    name: str, models: dict[str, str], empty: Path
) -> None:
    """vLLM puts the method before a class's name; a program that calls vllm.LLM is judged then."""
    found = KINDS[name]
    for method, made in (("eagle", "Eagle"), ("eagle3", "Eagle3")):
        if method in found.fits and not found.config["architectures"][0].startswith("Eagle"):
            own = {**found.config, "architectures": [f"{made}{found.config['architectures'][0]}"]}
            rewritten = found._replace(config=own)
            folder = empty / method
            assert "draft-class" not in said(models["Llama-3.1-8B"], folder, rewritten, method)


LACKING = {
    "FooForCausalLM",
    *(["BambaForCausalLM"] if installed_host.rules().vllm == "0.30" else []),
}


@pytest.mark.parametrize(
    "architecture", ["FooForCausalLM", "BambaForCausalLM", "LlamaForCausalLM", "LlamaModel"]
)
def test_a_class_that_vllm_lacks(architecture: str, models: dict[str, str], empty: Path) -> None:
    target = {**NUMBERS, "architectures": [architecture]}
    (empty / "config.json").write_text(json.dumps(target))
    codes = refused({"model": str(empty)}, installed_host.rules())
    assert ("family" in codes) == (architecture in LACKING)


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"eagle_aux_hidden_state_layer_ids": [2, 16, 16]}, "[16] twice"),
        ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": [2, 2, 29]}}, "[2] twice"),
        ({"dflash_config": {"target_layer_ids": [1, 32]}}, "[32], and"),
        ({"dflash_config": {"target_layer_ids": [1, 31]}}, None),
        ({"eagle_aux_hidden_state_layer_ids": [2, 16, 32]}, None),
    ],
)
def test_depths(
    config: dict[str, Any], says: str | None, models: dict[str, str], empty: Path
) -> None:
    """A depth that is named twice is handed on once, so that the head's matrix has no room."""
    head = kind("LlamaForCausalLMEagle3", (), "eagle3", **config)
    found = said(models["Llama-3.1-8B"], empty / "draft", head, "eagle3").get("head-depths")
    assert (found is None) if says is None else says in (found or "")

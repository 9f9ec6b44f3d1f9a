# SPDX-License-Identifier: Apache-2.0
"""Drafts as they are loaded: their options, weights that are missing or told, formats, modules."""

import dataclasses
import shutil
from copy import copy
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import vllm_ascend.ops  # noqa: F401  before the rest of it: its modules import in a circle
from safetensors.torch import load_file, save_file
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    Olmo2Config,
    Olmo2ForCausalLM,
    PretrainedConfig,
)

from tests.support import engine, hosts, reference, speculation
from tests.support.marks import needs_float32
from tests.support.pairs import assert_greedy, prompts_of, scenario
from tests.support.speculators import write_head
from tests.support.stock import each_runner
from tests.support.tiny_models import model_directory

# How the weights of a draft are loaded by model runner V1. No engine.

proposers = hosts.module("drafting.proposers")
HOST = hosts.module("drafting.host").HOST


@pytest.mark.parametrize(("asked", "used"), [("its own", "its own"), (None, "the target's")])
def test_a_draft_model_is_loaded_by_its_own_options(monkeypatch, asked, used):
    """vLLM's proposer of draft models forgets them."""
    target = SimpleNamespace(
        load_config="the target's", speculative_config=SimpleNamespace(draft_load_config=asked)
    )
    monkeypatch.setattr(proposers, "separate_draft_config", lambda *args, **named: copy(target))
    for question in ("has_recurrent_layers", "is_replicated"):
        monkeypatch.setattr(proposers, question, lambda config: False)
    proposer = object.__new__(proposers.DraftModelProposer)
    proposer.vllm_config, proposer.draft_host = target, HOST
    assert proposer._create_draft_vllm_config().load_config == used
    assert target.load_config == "the target's"


# An engine says which weights of an MTP draft's own checkpoint it does not use.

MTP_TARGET = "deepseek_v3_mtp"


@pytest.mark.host("0.23", cases=["the target's-v1"])
@pytest.mark.nightly("other cases of it stay", cases=["the target's-v2"])
@each_runner
@pytest.mark.parametrize("own", [True, False], ids=["own", "the target's"])
def test_embeddings_of_another_checkpoint(own, runner, tmp_path):
    trained, folder = model_directory(MTP_TARGET), tmp_path / "another"
    shutil.copytree(trained, folder)
    if own:
        file = folder / "model.safetensors"
        weights = load_file(file)
        for name in weights:
            if name.endswith("embed_tokens.weight"):
                weights[name] += torch.randn_like(weights[name])
        save_file(weights, file, metadata={"format": "pt"})
    case = engine.Scenario(
        model=str(trained),
        draft=str(folder),
        speculative={"method": "mtp"},
        record_drafts=False,
        prompts=[[5, 6, 7]],
        max_tokens=2,
        environment=runner,
    )
    told = (
        f"The draft in {folder} has its own embeddings, unlike the target's" in engine.run(case).log
    )
    assert told == own


# A draft whose files of weights lack what its class has does not draft with memory as it is.

NUMBERS = {
    "vocab_size": 264,
    "hidden_size": 128,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "bos_token_id": 256,
    "eos_token_id": 257,
    "pad_token_id": 258,
}


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    torch.manual_seed(1)
    folder = tmp_path_factory.mktemp("models") / "target"
    LlamaForCausalLM(LlamaConfig(**NUMBERS)).save_pretrained(folder)
    return folder


def write_draft(folder: Path, *lacking: str) -> Path:
    """A model whose matrices no check reads before an engine starts, without some tensors."""
    torch.manual_seed(2)
    Olmo2ForCausalLM(Olmo2Config(**NUMBERS)).save_pretrained(folder)
    file = folder / "model.safetensors"
    weights = load_file(file)
    for name in lacking:
        del weights[name]
    save_file(weights, file, metadata={"format": "pt"})
    return folder


@pytest.mark.host("0.23", cases=["v1"])
@each_runner
def test_a_part_of_a_fused_matrix_and_a_whole_one(target, runner, tmp_path):
    """vLLM itself says nothing: it counts no linear layers."""
    layers = ("model.layers.0.self_attn.k_proj.weight", "model.layers.1.mlp.down_proj.weight")
    draft = write_draft(tmp_path / "draft", *layers)
    case = engine.Scenario(
        model=str(target), draft=str(draft), prompts=[[5, 6]], max_tokens=2, environment=runner
    )
    with pytest.raises(engine.EngineFailedError) as refused:
        engine.run(case)
    said = str(refused.value)
    lacking = "model.layers.0.self_attn.qkv_proj.weight, model.layers.1.mlp.down_proj.weight"
    assert f"weights in {draft} have nothing, or a part, for {lacking}, which its" in said


# ``vllm serve DRAFT``: a head in speculators' format names its target, and vLLM serves both.
TARGET, HEAD = "llama_target", "llama_eagle3"


@needs_float32
@each_runner
def test_every_draft_token_of_a_head_that_is_served_by_its_own_name(runner, tmp_path):
    served = write_head(HEAD, TARGET, tmp_path, tokens=3)
    case = scenario(
        TARGET,
        prompts=prompts_of(TARGET, [70, 40, 5]),
        max_tokens=32,
        environment=runner,
        record_drafts=True,
    )
    result = engine.run(dataclasses.replace(case, model=str(served)))
    target = model_directory(TARGET)
    assert_greedy(target, case.prompts, result.tokens, case.max_tokens)
    drafter = speculation.DraftHead(model_directory(HEAD), target)
    report = reference.judge(drafter.rows, result.proposals, speculation.TIE)
    assert not report.wrong, report.wrong[:5]
    assert report.checked > 20 * 3


# A target's own layers that draft (``mtp``): what is built, and how it is configured. No engine.
#
# ``test_own_output_matrix.py`` drafts with such a head.

_architecture = hosts.module("patches.draft_architecture")


def test_of_several_modules_of_a_head_the_first_is_built():
    """Those of Qwen3.5 are counted in the configuration of its language model."""
    text = PretrainedConfig(mtp_num_hidden_layers=3)
    whole = PretrainedConfig(n_predict=3, num_nextn_predict_layers=2)
    _architecture.keep_first_module(
        SimpleNamespace(hf_config=whole, hf_text_config=text, model="a head")
    )
    assert (text.mtp_num_hidden_layers, whole.num_nextn_predict_layers, whole.n_predict) == (
        1,
        1,
        3,
    )


@pytest.mark.parametrize(
    ("method", "in_turn", "kept"),
    [("mtp", False, 1), ("mtp", True, 3), ("eagle", False, 3), ("dspark", False, 3)],
)
def test_modules_of_other_heads_are_all_built(method, in_turn, kept):
    """Step-3.5's run in turn, and stages of DSpark one after the other."""
    config = PretrainedConfig(num_nextn_predict_layers=3)
    speculative = SimpleNamespace(
        target_model_config=None,
        method=method,
        use_step3p5_mtp=lambda: in_turn,
        draft_model_config=SimpleNamespace(hf_config=config, hf_text_config=config, model="a head"),
    )
    (function,) = _architecture.keep_the_architecture.functions.values()
    function(lambda _: None, speculative)
    assert config.num_nextn_predict_layers == kept


@pytest.mark.parametrize("asked", [None, 200])
def test_layers_of_a_target_rotate_as_it_does_when_its_context_is_lengthened(asked):
    """vLLM reads their configuration again, without the values of ``--hf-overrides``."""
    from vllm.engine.arg_utils import EngineArgs

    rope = {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 256,
        "rope_theta": 10000.0,
        "partial_rotary_factor": 0.25,
    }
    speculative = {"method": "mtp", "num_speculative_tokens": 3}
    made = EngineArgs(
        model=str(model_directory("qwen3_next_mtp")),
        skip_tokenizer_init=True,
        dtype="float16",
        max_model_len=1024,
        hf_overrides={"rope_parameters": rope, "max_position_embeddings": 1024},
        speculative_config={**speculative, **({"max_model_len": asked} if asked else {})},
    )
    config = made.create_engine_config()
    draft = config.speculative_config.draft_model_config
    text = config.model_config.hf_text_config
    assert text.rope_parameters["rope_type"] == "yarn"
    assert draft.hf_text_config.rope_parameters == text.rope_parameters
    assert draft.max_model_len == (asked or 1024)

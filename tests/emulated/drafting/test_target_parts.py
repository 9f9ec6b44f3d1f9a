# SPDX-License-Identifier: Apache-2.0
"""Drafts for targets whose classes have names of their own for embeddings and output matrix."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import vllm_ascend.ops  # noqa: F401  before the rest of it: its modules import in a circle
from safetensors.torch import save_file
from torch import nn
from transformers import GPTNeoXConfig, GPTNeoXForCausalLM, LlamaConfig
from vllm.model_executor.layers.vocab_parallel_embedding import (
    ParallelLMHead,
    VocabParallelEmbedding,
)

from mkv_ascend.adapters.common.drafting.target_parts import named_parts
from tests.support import engine, hosts, reference, speculation
from tests.support.loop_judgement import assert_decoded_as
from tests.support.marks import needs_float32
from tests.support.stock import each_runner
from tests.support.tiny_models import model_directory
from tests.support.tiny_models.heads import EagleHead

_proposers = hosts.module("drafting.proposers")
NOISE = 0.08
"""More of it and the head, which is not trained, names few of the target's tokens."""
K, NEW_TOKENS = 3, 32
PROMPTS = [[(7 * place * place + 31 * n + place) % 250 for place in range(n)] for n in (5, 40, 130)]


class Embeddings(VocabParallelEmbedding):
    def __new__(cls) -> Embeddings:
        return nn.Module.__new__(cls)

    def __init__(self) -> None:
        nn.Module.__init__(self)


class Matrix(Embeddings, ParallelLMHead):
    """An output matrix."""


def gpt_neox() -> nn.Module:
    target = nn.Module()
    target.gpt_neox, target.embed_out = nn.Module(), Matrix()
    target.gpt_neox.embed_in = Embeddings()
    return target


def ling() -> nn.Module:
    target = nn.Module()
    target.lm_head, target.model = Matrix(), nn.Module()
    target.model.word_embeddings = Embeddings()
    return target


def cohere() -> nn.Module:
    target = nn.Module()
    target.model = nn.Module()
    target.model.embed_tokens = Embeddings()
    return target


def gemma_4() -> nn.Module:
    """A target with embeddings of each layer before those of its tokens."""
    target = nn.Module()
    target.model, target.lm_head = nn.Module(), Matrix()
    target.model.embed_tokens_per_layer, target.model.embed_tokens = Embeddings(), Embeddings()
    return target


@pytest.mark.parametrize(
    ("make", "embeddings", "matrix"),
    [
        (gpt_neox, "gpt_neox.embed_in", "embed_out"),
        (ling, "model.word_embeddings", "lm_head"),
        (cohere, "model.embed_tokens", "model.embed_tokens"),
        (gemma_4, "model.embed_tokens", "lm_head"),
    ],
)
def test_a_target_answers_by_the_hosts_names_while_a_draft_is_loaded(make, embeddings, matrix):
    target = make()
    before = {name: vars(module).copy() for name, module in target.named_modules()}
    modules = dict(target.named_modules())
    with named_parts(target):
        assert target.model.embed_tokens is modules[embeddings]
        assert target.lm_head is modules[matrix]
    assert dict(target.named_modules()) == modules
    assert {name: vars(module) for name, module in target.named_modules()} == before


def test_a_draft_model_is_not_given_the_keys_that_its_target_chose():
    """Nor asked for ``model``, which its class may not have."""
    target = SimpleNamespace(model=SimpleNamespace(topk_indices_buffer=object()))
    proposer = object.__new__(_proposers.DraftModelProposer)
    proposer.model = object()
    proposer._maybe_share_topk_indices(target)


@dataclass(frozen=True)
class Drafts:
    """A random head on a random target: a ``Drafter``."""

    head: EagleHead
    target: Path

    def rows(self, context: Sequence[int], drafted: Sequence[int]) -> torch.Tensor:
        with torch.inference_mode():
            known = speculation.hidden_states_of(self.target, tuple(context[:-1]))[-1]
            return speculation.rows_of_head(self.head, known, context, drafted)


def write_target(folder: Path) -> Path:
    """A random GPT-NeoX in which most tokens are followed by the next one of the vocabulary."""
    torch.manual_seed(0)
    config = GPTNeoXConfig(
        vocab_size=264,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=1024,
        bos_token_id=256,
        eos_token_id=257,
    )
    model = GPTNeoXForCausalLM(config)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() > 1:
                nn.init.normal_(weight, 0, NOISE)
        embeddings = nn.init.normal_(model.get_input_embeddings().weight, 0, 0.5)
        noise = NOISE * torch.randn_like(embeddings)
        model.get_output_embeddings().weight.copy_(embeddings.roll(1, 0) + noise)
    model.save_pretrained(folder)
    return folder


def write_head(target: Path, folder: Path) -> Drafts:
    """A head without embeddings and output matrix, which follows the token more than its state."""
    model = reference.load_model(target)
    config = LlamaConfig(
        vocab_size=264,
        hidden_size=128,
        intermediate_size=128,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=64,
        max_position_embeddings=1024,
        attn_implementation="eager",
    )
    head = EagleHead(model, config).eval()
    with torch.no_grad():
        for weight in head.parameters():
            if weight.dim() > 1:
                nn.init.normal_(weight, 0, NOISE)
        head.fc.weight[:, :128] += torch.eye(128)
    folder.mkdir()
    weights = {name: value.clone() for name, value in head.weights().items()}
    save_file(weights, folder / "model.safetensors")
    config.architectures = ["LlamaForCausalLM"]
    (folder / "config.json").write_text(json.dumps(config.to_dict()))
    return Drafts(head, target)


def assert_tokens_of(target: Path, result: engine.Result) -> None:
    given = [reference.DraftProposal(*pair) for pair in zip(PROMPTS, result.tokens, strict=True)]
    assert not reference.check_drafts(target, given).wrong


@needs_float32
@each_runner
def test_a_head_shares_what_gpt_neox_has_by_other_names(runner, tmp_path):
    """Its target has no ``model``, ``embed_tokens`` or ``lm_head``, and the head no matrices."""
    target = write_target(tmp_path / "target")
    drafts = write_head(target, tmp_path / "head")
    outputs = [speculation.speculate(target, drafts, prompt, K, NEW_TOKENS) for prompt in PROMPTS]
    assert all(output.decided for output in outputs)
    result = engine.run(
        engine.Scenario(
            str(target),
            str(tmp_path / "head"),
            prompts=PROMPTS,
            max_tokens=NEW_TOKENS,
            num_speculative_tokens=K,
            speculative={"method": "eagle"},
            environment=dict(runner),
            record_drafts=True,
        )
    )
    assert_decoded_as(outputs, result)


@needs_float32
@hosts.only_on("vllm_ascend_0_23", "its names are the same on the other")
def test_a_draft_without_a_model_serves_a_target_that_chooses_keys(tmp_path):
    """vllm-ascend gives any draft the target's buffer of chosen keys, in its ``model``."""
    target = model_directory("deepseek_v32_target")
    draft = str(write_target(tmp_path / "draft"))
    result = engine.run(
        engine.Scenario(str(target), draft, prompts=PROMPTS, max_tokens=12, record_drafts=True)
    )
    assert_tokens_of(target, result)
    report = reference.check_drafts(draft, result.proposals)
    assert not report.wrong
    assert report.checked > 30

# SPDX-License-Identifier: Apache-2.0
"""Draft models whose embeddings are padded to another size than their target's."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch
import vllm_ascend.ops  # noqa: F401  before the rest of it: its modules import in a circle
from torch import nn
from vllm.model_executor.layers.logits_processor import LogitsProcessor
from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding

from mkv_ascend.adapters.common.drafting import draft_building
from mkv_ascend.adapters.common.patches.draft_architecture import (
    ROWS,
    plain_tokens,
    refuse_unlike_tokens,
)
from tests.support import engine, hosts, reference, speculation
from tests.support.loop_judgement import assert_decoded_as
from tests.support.marks import needs_float32
from tests.support.models import padded_rows
from tests.support.pairs import text_prompts
from tests.support.stock import RUNNER_V2, each_runner
from tests.support.tiny_models import model_directory
from tests.support.tiny_models.tokenizer import NUM_BYTES, VOCABULARY_SIZE

K, NEW_TOKENS, MORE = 3, 24, 16


def pair(tmp_path, padded):
    """Folders of target and draft, one of them padded."""
    names = {"target": "llama_target", "draft": "llama_draft"}
    found = {role: model_directory(name) for role, name in names.items()}
    name = names[padded]
    found[padded] = padded_rows.pad(name, tmp_path / padded, MORE, likely=padded == "draft")
    return found["target"], found["draft"]


@needs_float32
@each_runner
@pytest.mark.parametrize(
    ("padded", "graphs"), [("target", None), ("draft", "FULL_DECODE_ONLY")], ids=["target", "draft"]
)
def test_tokens_of_both_models_are_drafted(padded, graphs, runner, tmp_path):
    """All proposals, tokens and counts are those of models without padding."""
    target, draft = pair(tmp_path, padded)
    plain = [model_directory("llama_target"), model_directory("llama_draft")]
    drafter = speculation.DraftModel(plain[1])
    outputs, prompts = [], []
    for prompt in text_prompts(plain[0])[::3]:
        output = speculation.draft_and_verify(plain[0], drafter, prompt, K, NEW_TOKENS)
        if output.decided:
            outputs.append(output)
            prompts.append(prompt)
    assert len(prompts) > 2
    result = engine.run(
        engine.Scenario(
            str(target),
            str(draft),
            prompts=prompts,
            max_tokens=NEW_TOKENS,
            num_speculative_tokens=K,
            environment=dict(runner),
            graphs=graphs,
            record_drafts=True,
        )
    )
    assert_decoded_as(outputs, result)


@needs_float32
@each_runner
def test_a_token_that_only_the_target_has_is_no_number_too_large(runner, tmp_path):
    """A prompt may name one, and the request beside it is served as ever."""
    target, draft = pair(tmp_path, "target")
    prompts = text_prompts(target)[:2]
    prompts[0] = [*prompts[0][:5], VOCABULARY_SIZE + MORE - 1, *prompts[0][5:]]
    case = engine.Scenario(
        str(target), str(draft), prompts=prompts, max_tokens=NEW_TOKENS, environment=dict(runner)
    )
    tokens = engine.run(case).tokens
    pairs = zip(prompts, tokens, strict=True)
    assert not reference.check_drafts(
        target, [reference.DraftProposal(*one) for one in pairs]
    ).wrong


@hosts.only_on("vllm_ascend_0_30", "0.23.0 draws no draft tokens")
def test_padding_is_not_drawn(tmp_path):
    """With probabilities a logit of zero is no small one."""
    target, draft = pair(tmp_path, "target")
    result = engine.run(
        engine.Scenario(
            str(target),
            str(draft),
            prompts=text_prompts(target)[:4],
            max_tokens=24,
            sampling={"temperature": 2.0},
            speculative={"draft_sample_method": "probabilistic"},
            environment=dict(RUNNER_V2),
            record_drafts=True,
        )
    )
    drawn = [token for proposal in result.proposals for token in proposal.tokens]
    assert len(drawn) > 100
    assert max(drawn) < VOCABULARY_SIZE


def test_logits_of_missing_rows_are_never_the_largest():
    draft = nn.Module()
    draft.logits_processor = nn.Module.__new__(LogitsProcessor)
    nn.Module.__init__(draft.logits_processor)
    draft.logits_processor.forward = lambda logits: logits
    config = SimpleNamespace(hf_text_config=SimpleNamespace(**{ROWS: 3}), get_vocab_size=lambda: 5)
    draft_building.leave_out_padding(draft, config)
    logits = draft.logits_processor(-torch.ones(2, 5))
    assert logits.tolist() == [[-1.0] * 3 + [-math.inf] * 2] * 2


def test_weights_have_the_rows_that_are_configured():
    weight = torch.arange(6.0).view(3, 2)
    assert torch.equal(draft_building.with_rows(weight, 0, 2), weight[:2])
    longer = draft_building.with_rows(weight, 0, 5)
    assert torch.equal(longer, torch.cat([weight, torch.zeros(2, 2)]))


def test_a_file_with_other_rows_than_its_configuration_says_is_left_to_vllm(monkeypatch):
    """One that was cut short, too: nothing is filled up for it."""
    loaded = []
    monkeypatch.setattr(
        VocabParallelEmbedding, "weight_loader", lambda *given: loaded.append(len(given[2]))
    )
    draft = SimpleNamespace(hf_text_config=SimpleNamespace(**{ROWS: 3}))
    with draft_building.loading_padded_vocabulary(draft):
        for rows in (3, 2):
            VocabParallelEmbedding.weight_loader(
                SimpleNamespace(org_vocab_size=5), SimpleNamespace(output_dim=0), torch.ones(rows)
            )
    assert loaded == [5, 2]


def test_tokenizers_are_compared_by_the_tokens_that_both_have():
    words = {0: "a", 1: "b", 2: "c"}
    refuse_unlike_tokens(words, {**words, 3: "d"}, (4, 8))
    with pytest.raises(ValueError, match=r"2 of 3 tokens differ, first token 0: 'a' and 'b'"):
        refuse_unlike_tokens(words, {0: "b", 1: "a", 2: "c"}, (4, 8))
    with pytest.raises(ValueError, match="no token in common"):
        refuse_unlike_tokens({}, words, (4, 8))


def test_special_tokens_may_differ(tmp_path):
    """A chat model has others than its base."""
    found = []
    for name in ("llama_target", "llama_draft"):
        folder = padded_rows.pad(name, tmp_path / name, 8, likely=False)
        found.append(SimpleNamespace(model=str(folder), revision=None, trust_remote_code=False))
    file = tmp_path / "llama_draft" / "tokenizer.json"
    words = file.read_text().replace("<unused3>", "<think>")
    file.unlink()
    file.write_text(words)
    target, draft = (plain_tokens(one, one.model) for one in found)
    assert target == draft
    assert len(target) == NUM_BYTES

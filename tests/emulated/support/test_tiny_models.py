# SPDX-License-Identifier: Apache-2.0
"""What the trained tiny models are worth as judges.

Nothing here needs the emulated device; it stands with the tests that use the models.
"""

from __future__ import annotations

import itertools
import json
import math
from collections import Counter
from pathlib import Path

import pytest

from tests.support import prompts, reference, speculation
from tests.support.tiny_models import (
    NAMES,
    model_directory,
    recurrent,
    sensitivity,
    store,
)
from tests.support.tiny_models.corpus import load_corpus
from tests.support.tiny_models.making import held_out_pieces, one_thread
from tests.support.tiny_models.recipes import (
    FOR_THE_MATRIX,
    RECIPES,
    RecurrentRecipe,
    find_recipe,
)

pytestmark = pytest.mark.host("0.23")

TRAINED = [name for name in NAMES if name not in FOR_THE_MATRIX]
WITH_STATES = [name for name in TRAINED if isinstance(RECIPES[name], RecurrentRecipe)]

PAIRS = [
    ("deepseek_v2_target", "llama_draft"),
    ("llama_target", "llama_draft"),
    ("llama_target", "deepseek_v2_draft"),
    ("gemma3", "gemma3_draft"),
    ("gemma3", "gemma3_perturbed"),
    ("gemma3_alternating", "gemma3_alternating_perturbed"),
    ("gpt_oss", "gpt_oss_draft"),
    ("qwen3_next", "qwen3_next_draft"),
    ("qwen3_next", "llama_draft"),
    ("granite4", "llama_draft"),
    ("lfm2", "llama_draft"),
]
HEADS = [
    ("llama_target", "llama_eagle"),
    ("gpt_oss", "gpt_oss_eagle3"),
    ("deepseek_v2_target", "deepseek_v3_mtp"),
    ("qwen3_next", "qwen3_next_mtp"),
]
SPECULATIVE_TOKENS = 3
NEW_TOKENS = 32


def acceptance(target: Path, drafter: speculation.Drafter, texts: list[str]) -> float:
    """Mean acceptance length over all proposals for ``texts``."""
    prompts = [reference.token_ids(target, text) for text in texts]
    outputs = [
        speculation.draft_and_verify(target, drafter, prompt, SPECULATIVE_TOKENS, NEW_TOKENS)
        for prompt in prompts
    ]
    accepted = sum(sum(output.accepted_per_position) for output in outputs)
    return 1 + accepted / sum(len(output.proposals) for output in outputs)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in TRAINED if name not in WITH_STATES])
def test_one_missing_key_is_noticed(name: str) -> None:
    """Measured again on what was written to disk, not read from what was recorded."""
    path = model_directory(name)
    with one_thread():
        model = reference.load_model(path)
        share = sensitivity.removal_share(model, sensitivity.probe_contexts())
    assert share > find_recipe(name).required_share
    recorded = store.read_description(path)["sensitivity"]
    assert share == pytest.approx(recorded["share"], abs=0.02)
    # No layer is blind, so that a fault in the cache of one kind of layer can be seen.
    assert min(recorded["share_by_layer"]) > sensitivity.REQUIRED_LAYER_SHARE, recorded


@pytest.mark.slow
@pytest.mark.parametrize("name", WITH_STATES)
def test_one_token_missing_in_a_state_is_noticed(name: str) -> None:
    path = model_directory(name)
    with one_thread():
        model = reference.load_model(path)
        states = recurrent.recurrent_modules(model)
        share = recurrent.missing_share(model, sensitivity.probe_contexts(), states, [])
    assert share > recurrent.REQUIRED_STATE_SHARE
    recorded = store.read_description(path)["sensitivity"]
    assert share == pytest.approx(recorded["share"], abs=0.02)
    assert recorded["share_of_keys"] > recurrent.REQUIRED_KEY_SHARE
    assert min(recorded["share_by_layer"]) > 0.01, recorded


@pytest.mark.slow
@pytest.mark.parametrize("name", TRAINED)
def test_text_was_learnt(name: str) -> None:
    """More than which byte follows which, where byte frequencies alone give 3.37 nats."""
    corpus = load_corpus()
    text, rows = b"".join(corpus.training), held_out_pieces(corpus, 255)
    pairs, firsts = Counter(itertools.pairwise(text)), Counter(text)
    losses = [
        math.log((firsts[first] + 25) / (pairs[first, second] + 0.1))
        for row in rows
        for first, second in itertools.pairwise(row)
    ]
    recorded = store.read_description(model_directory(name))["held_out_loss"]
    assert recorded < sum(losses) / len(losses)


@pytest.mark.slow
@pytest.mark.parametrize(("target", "draft"), [*PAIRS, *HEADS])
def test_drafts_are_accepted(target: str, draft: str) -> None:
    texts = [*prompts.demo_prompts(), *prompts.text_prompts()[:4]]
    directories = model_directory(target), model_directory(draft)
    drafter: speculation.Drafter = speculation.DraftModel(directories[1])
    if (target, draft) in HEADS:
        drafter = speculation.DraftHead(directories[1], directories[0])
    with one_thread():
        length = acceptance(directories[0], drafter, texts)
    assert length > 1.5


@pytest.mark.slow
@pytest.mark.parametrize("name", TRAINED)
def test_few_choices_are_near_ties(name: str) -> None:
    """A comparison of tokens decides little where most choices are ties."""
    texts = [*prompts.demo_prompts(), *prompts.text_prompts()[:8], *prompts.deck_prompts(4)]
    with one_thread():
        outputs = reference.greedy(model_directory(name), texts, NEW_TOKENS)
    ties = sum(len(output.near_ties) for output in outputs)
    assert ties <= 0.01 * NEW_TOKENS * len(texts), json.dumps([min(o.gaps) for o in outputs])
    different = {tuple(output.tokens) for output in outputs}
    assert len(different) >= 0.7 * len(texts), "the prompts hardly matter"

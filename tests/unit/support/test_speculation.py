# SPDX-License-Identifier: Apache-2.0
"""Draft-and-verify and the drafting heads, on random models of a few thousand weights."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from mkv_ascend import envs
from tests.support import reference, speculation
from tests.support.models.random_models import write_model
from tests.support.speculation import DraftModel, SpeculativeOutput, draft_and_verify
from tests.support.tiny_models import derived, head_training, training
from tests.support.tiny_models.head_sensitivity import proposals_without_keys
from tests.support.tiny_models.heads import Head
from tests.support.tiny_models.recipes import HeadRecipe, Recipe

CONTEXTS = st.lists(st.integers(0, 255), min_size=1, max_size=12)

SMALL: dict[str, Any] = {
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_attention_heads": 2,
    "head_dim": 8,
}
LLAMA = Recipe(name="small", model_type="llama", architecture=SMALL, steps=1)
DEEPSEEK = Recipe(
    name="small_mla",
    model_type="deepseek_v2",
    architecture={
        **SMALL,
        "num_key_value_heads": 2,
        "head_dim": 4,
        "moe_intermediate_size": 8,
        "n_routed_experts": 4,
        "n_shared_experts": 1,
        "num_experts_per_tok": 2,
        "first_k_dense_replace": 1,
        "topk_method": "greedy",
        "q_lora_rank": None,
        "kv_lora_rank": 8,
        "qk_rope_head_dim": 4,
        "qk_nope_head_dim": 8,
        "v_head_dim": 8,
    },
    steps=1,
)
HEADS = {
    "eagle": (LLAMA, {**SMALL, "num_hidden_layers": 1}),
    "eagle3": (
        LLAMA,
        {**SMALL, "num_hidden_layers": 1, "eagle_aux_hidden_state_layer_ids": [0, 1]},
    ),
    "mtp": (DEEPSEEK, {}),
}


def head_of(method: str) -> Head:
    """A head with random weights that are large enough to matter, on a random target."""
    target, architecture = HEADS[method]
    recipe = HeadRecipe(
        name=f"small_{method}",
        model_type="deepseek_v3" if method == "mtp" else "llama",
        architecture=architecture,
        steps=1,
        source=target.name,
        method=method,
    )
    head = head_training.build_head(recipe, training.build_model(target).eval())
    torch.manual_seed(5)
    for parameter in head.parameters():
        torch.nn.init.normal_(parameter, mean=float(parameter.dim() < 2), std=0.3)
    return head.eval()


@pytest.fixture(scope="module", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(envs.CACHE.name, str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Sequence[Path]:
    """A target, and another model as its draft."""
    root = tmp_path_factory.mktemp("models")
    return write_model(root / "target", 1), write_model(root / "draft", 2)


@given(context=CONTEXTS, k=st.integers(1, 4), count=st.integers(1, 9), self_draft=st.booleans())
@settings(max_examples=25)
def test_speculation_keeps_the_targets_tokens_and_accepts_what_they_share(
    models: Sequence[Path], context: list[int], k: int, count: int, self_draft: bool
) -> None:
    """Acceptance again from the target's and the draft's plain continuations."""
    target, draft = models[0], models[0] if self_draft else models[1]
    output = draft_and_verify(target, DraftModel(draft), context, k, count)
    # Verification may go past the last wanted token.
    plain = reference.greedy_tokens(target, [context], count + k)[0]
    assert output.tokens == plain[:count]
    done, accepted = 1, [0] * k
    for proposal in output.proposals:
        assert proposal.context == [*context, *plain[:done]]
        assert proposal.tokens == reference.draft_tokens(draft, proposal.context, k)
        agreed = 0
        while agreed < k and proposal.tokens[agreed] == plain[done + agreed]:
            accepted[agreed] += 1
            agreed += 1
        assert done < count
        done += agreed + 1
    assert done >= count
    assert output.accepted_per_position == accepted
    if self_draft:
        assert accepted == [len(output.proposals)] * k


def test_mean_acceptance_length_counts_the_targets_token() -> None:
    proposals = [reference.DraftProposal([1], [2, 3, 4])] * 4
    assert SpeculativeOutput([1] * 10, proposals, [3, 2, 1], 1.0).mean_acceptance_length == 2.5
    assert SpeculativeOutput([], [], [0], 1.0).mean_acceptance_length == 0.0


def test_a_near_tie_leaves_an_output_undecided(tmp_path: Path) -> None:
    tied = write_model(tmp_path / "tied", 3, tie=True)
    assert not draft_and_verify(tied, DraftModel(tied), [1, 2], 2, 3).decided


@pytest.mark.parametrize("method", HEADS)
def test_a_head_does_not_see_what_comes_later(method: str) -> None:
    head = head_of(method)
    tokens = torch.tensor([[5, 6, 7, 8], [5, 6, 9, 8]])
    with torch.inference_mode():
        known = head.known(
            head.target(input_ids=tokens, output_hidden_states=True, use_cache=False).hidden_states
        )
        states, following = head(tokens, known)
    for answer in (states, following):
        assert torch.allclose(answer[0, :2], answer[1, :2], atol=1e-6)
        assert not torch.allclose(answer[0, 3], answer[1, 3], atol=1e-3)


@pytest.mark.parametrize("method", HEADS)
def test_a_heads_weights_survive_their_checkpoint(method: str) -> None:
    head, other = head_of(method), head_of(method)
    for parameter in other.parameters():
        torch.nn.init.zeros_(parameter)
    other.load_weights({name: value.clone() for name, value in head.weights().items()})
    for name, value in head.named_parameters():
        assert torch.equal(value, dict(other.named_parameters())[name]), name


@pytest.mark.parametrize("method", HEADS)
def test_a_heads_missing_key_tells_nothing_of_its_token(method: str) -> None:
    """With the key at a position hidden, what entered the head there cannot matter."""
    head = head_of(method)
    tokens = torch.randint(0, 256, (7,), generator=torch.Generator().manual_seed(1))
    known = torch.randn(1, 7, SMALL["hidden_size"], generator=torch.Generator().manual_seed(2))
    changed = known.clone()
    changed[0, 3] = 5.0
    before = proposals_without_keys(head, tokens, known)
    after = proposals_without_keys(head, tokens, changed)
    assert torch.equal(before[3], after[3])
    assert not torch.equal(before, after)
    assert not torch.equal(before[:-1], before[-1:].expand_as(before[:-1]))


def test_an_mtp_layer_is_saved_as_transformers_saves_the_targets_layers(tmp_path: Path) -> None:
    """Names and shapes of layer 1 of the target, which is of the same kind."""
    head = head_of("mtp")
    head.target.save_pretrained(tmp_path)
    saved = load_file(tmp_path / derived.WEIGHTS_FILE)
    of_layer_1 = {
        name.removeprefix("model.layers.1."): value.shape
        for name, value in saved.items()
        if name.startswith("model.layers.1.")
    }
    ours = {
        name.removeprefix("model.layers.2."): value.shape for name, value in head.weights().items()
    }
    assert of_layer_1.items() <= ours.items()
    assert set(ours) - set(of_layer_1) == {
        "enorm.weight",
        "hnorm.weight",
        "eh_proj.weight",
        "embed_tokens.weight",
        "shared_head.norm.weight",
        "shared_head.head.weight",
    }


def test_a_head_cannot_draft_before_the_target_ran(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="two or more"):
        speculation.DraftHead(tmp_path, tmp_path).rows([1], [])

# SPDX-License-Identifier: Apache-2.0
"""The judge itself, on random models of a few thousand weights."""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from mkv_ascend import envs
from tests.support import reference
from tests.support.models.random_models import write_model
from tests.support.speculation import DraftModel, draft_and_verify

CONTEXTS = st.lists(st.integers(0, 255), min_size=1, max_size=12)


@pytest.fixture(scope="module", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(envs.CACHE.name, str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Sequence[Path]:
    """Target, another model as its draft, and one whose every choice is a tie."""
    root = tmp_path_factory.mktemp("models")
    return (
        write_model(root / "target", 1),
        write_model(root / "draft", 2),
        write_model(root / "tied", 3, tie=True),
    )


def test_a_checkpoint_that_lacks_weights_judges_nothing(
    models: Sequence[Path], tmp_path: Path
) -> None:
    copied = Path(shutil.copytree(models[0], tmp_path / "copy"))
    weights = load_file(copied / "model.safetensors")
    del weights["model.norm.weight"]
    save_file(weights, copied / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ValueError, match=r"no reference: it has no model\.norm\.weight"):
        reference.load_model(copied)


@given(context=CONTEXTS)
@settings(max_examples=10)
def test_greedy_is_what_transformers_generates(models: Sequence[Path], context: list[int]) -> None:
    """Against ``generate``, which uses a KV cache and its own loop."""
    generated = reference.load_model(models[0]).generate(
        torch.tensor([context]),
        attention_mask=torch.ones(1, len(context), dtype=torch.int64),
        do_sample=False,
        max_new_tokens=6,
        eos_token_id=None,
        pad_token_id=0,
    )
    expected = generated[0, len(context) :].tolist()
    output = reference.greedy(models[0], [context], 6)[0]
    first_tie = min(output.near_ties, default=6)
    assert output.tokens[:first_tie] == expected[:first_tie]


@given(context=CONTEXTS, k=st.integers(1, 5), data=st.data())
@settings(max_examples=20)
def test_a_changed_draft_token_is_caught(
    models: Sequence[Path], context: list[int], k: int, data: st.DataObject
) -> None:
    tokens = reference.draft_tokens(models[1], context, k)
    right = reference.DraftProposal(context, tokens)
    assert reference.check_drafts(models[1], [right]) == reference.DraftReport(k, [], [])
    position = data.draw(st.integers(0, k - 1))
    changed = [*tokens]
    changed[position] = (changed[position] + 1) % 256
    report = reference.check_drafts(models[1], [right, reference.DraftProposal(context, changed)])
    assert report.checked == 2 * k
    first = (report.wrong or report.near_ties)[0]
    assert (first.proposal, first.position) == (1, position)
    assert (first.proposed, first.expected) == (changed[position], tokens[position])


def test_a_near_tie_is_named_apart_and_only_for_its_own_tokens(models: Sequence[Path]) -> None:
    partners = {7: 8, 8: 7, 9: 10, 10: 9}
    start = reference.draft_tokens(models[2], [1], 1)[0]
    # A context whose last choice is of the other pair than the first one.
    context, chosen = next(
        (context, token)
        for context in ([1, last] for last in range(256))
        for token in reference.draft_tokens(models[2], context, 1)
        if token not in (start, partners[start])
    )
    partner = partners[chosen]
    proposals = [reference.DraftProposal(context, [token]) for token in (chosen, partner, 3)]
    report = reference.check_drafts(models[2], proposals)
    assert report.checked == 3
    assert [deviation.proposed for deviation in report.near_ties] == [partner]
    assert [deviation.proposed for deviation in report.wrong] == [3]
    assert "proposal 2, position 0: proposed 3" in str(report.wrong[0])
    lenient = reference.check_drafts(models[2], proposals, near_tie=float("inf"))
    assert [deviation.proposed for deviation in lenient.near_ties] == [partner, 3]
    assert reference.greedy(models[2], [[1]], 2)[0].near_ties == [0, 1]


@given(context=CONTEXTS, k=st.integers(1, 4), count=st.integers(1, 9), self_draft=st.booleans())
@settings(max_examples=25)
def test_speculation_keeps_the_targets_tokens_and_accepts_what_they_share(
    models: Sequence[Path], context: list[int], k: int, count: int, self_draft: bool
) -> None:
    """Acceptance again from the target's and the draft's plain continuations."""
    target, draft = models[0], models[0 if self_draft else 1]
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


def test_a_near_tie_leaves_an_output_undecided(models: Sequence[Path]) -> None:
    assert not draft_and_verify(models[2], DraftModel(models[2]), [1, 2], 2, 3).decided

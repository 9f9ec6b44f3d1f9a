# SPDX-License-Identifier: Apache-2.0
"""Drafts for targets that see pictures and have M-RoPE, judged by Hugging Face.

Requests with pictures and without are in one batch. A draft model sees placeholders in place of a
picture, and plain positions; a head has the target's positions on three axes. Whether a head is
given embeddings of pictures is up to its class in vLLM.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support import engine, pictures, prompts, reference, speculation
from tests.support.loop_judgement import accepted_by_loops, assert_decoded_as
from tests.support.models import pictured_depths, pictured_hybrid, pictured_model
from tests.support.pictures import Picture, PicturedText
from tests.support.stock import RUNNER_V2, each_runner

K = 3
NEW_TOKENS = 16
DRAWN = {"draft_sample_method": "probabilistic"}
SHOWN = [
    Picture(1, 56, 84),
    None,
    Picture(2, 84, 56),
    Picture(3, 28, 112),
    None,
    Picture(4, 112, 112),
    Picture(5, 84, 84),
]


@dataclass(frozen=True)
class Judged:
    """Prompts whose decoding no near tie decides, and their decoding in plain loops."""

    target: Path
    draft: Path
    prompts: list[list[int]]
    pictures: list[Picture | None]
    outputs: list[speculation.SpeculativeOutput]

    def accepted(self) -> list[int]:
        """Draft tokens by position in a proposal."""
        return accepted_by_loops(self.outputs)


def judge(target: Path, draft: Path, drafter_of) -> Judged:
    """Decks around pictures: going on needs every key."""
    decks = [reference.token_ids(target, deck) for deck in prompts.deck_prompts(len(SHOWN))]
    kept = []
    for deck, picture in zip(decks, SHOWN, strict=True):
        prompt = deck if picture is None else pictures.with_picture(deck[:4], deck[4:])
        text = PicturedText(target, prompt, picture)
        output = speculation.speculate_by(text.logits, drafter_of(text), text.prompt, K, NEW_TOKENS)
        if output.decided:
            kept.append((prompt, picture, output))
    prompts_kept, shown, outputs = map(list, zip(*kept, strict=True))
    assert len(shown) - shown.count(None) >= 3
    assert None in shown
    return Judged(target, draft, prompts_kept, shown, outputs)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pictured_model.write_target(tmp_path_factory.mktemp("target"))


@pytest.fixture(scope="module")
def with_draft_model(target: Path, tmp_path_factory: pytest.TempPathFactory) -> Judged:
    draft = pictured_model.write_draft(tmp_path_factory.mktemp("draft"))
    return judge(target, draft, lambda _: speculation.DraftModel(draft))


def run(judged: Judged, method: str, runner: dict[str, str], *, drawn: bool = False, **arguments):
    case = engine.Scenario(
        model=str(judged.target),
        draft=str(judged.draft),
        prompts=judged.prompts,
        pictures=judged.pictures,
        max_tokens=NEW_TOKENS,
        num_speculative_tokens=K,
        speculative={"method": method, **(DRAWN if drawn else {})},
        record_drafts=True,
        graphs="FULL_DECODE_ONLY",
        # Some batches have a graph of their size, others have rows of padding.
        capture_sizes=tuple(requests * (K + 1) for requests in (1, 3, 8)),
        environment=runner,
        engine=arguments,
    )
    result = engine.run(case)
    print(f"{method}: accepted {judged.accepted()} of {len(result.proposals)}")
    assert_decoded_as(judged.outputs, result)
    assert result.draft_replays > 2
    return result


@pytest.mark.host("0.23", cases=["v1"])
@pytest.mark.nightly("other cases of it stay", cases=["v2"])
@each_runner
def test_a_draft_model(with_draft_model: Judged, runner: dict[str, str]):
    """The target's own text model: only where there is a picture it drafts other tokens."""
    result = run(with_draft_model, "draft_model", runner)
    for picture, output in zip(with_draft_model.pictures, with_draft_model.outputs, strict=True):
        accepted_whole = set(output.accepted_per_position) == {len(output.proposals)}
        assert accepted_whole == (picture is None)
    assert result.draft_replays < len(result.proposals)


@pytest.fixture(scope="module")
def with_head(target: Path, tmp_path_factory: pytest.TempPathFactory) -> Judged:
    head = pictured_model.write_head(tmp_path_factory.mktemp("head"))
    return judge(target, head, lambda text: pictures.PicturedHead(head, text))


@pytest.mark.host("0.23", cases=["v1"])
@each_runner
def test_a_head_with_axes(with_head: Judged, runner: dict[str, str]):
    """Chunks of prompts, some of them of a picture, are as long as the rows of verify steps.

    Model runner V2 draws draft tokens, of which the likeliest is left without a temperature.
    """
    drawn = runner == RUNNER_V2
    run(with_head, "eagle3", runner, drawn=drawn, long_prefill_token_threshold=K + 1)
    assert with_head.accepted()[0] > 0


@pytest.fixture(scope="module")
def with_depths(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pictured_depths.write_target(tmp_path_factory.mktemp("depths"))


@pytest.mark.nightly("as Qwen2.5-VL, but for models that no other test needs")
@each_runner
def test_a_draft_model_where_axes_take_turns(
    with_depths: Path, tmp_path: Path, runner: dict[str, str]
):
    """Qwen3-VL, which is given pictures behind its first layer, too."""
    draft = pictured_depths.write_draft(tmp_path)
    judged = judge(with_depths, draft, lambda _: speculation.DraftModel(draft))
    run(judged, "draft_model", runner)
    for picture, output in zip(judged.pictures, judged.outputs, strict=True):
        accepted_whole = set(output.accepted_per_position) == {len(output.proposals)}
        assert accepted_whole == (picture is None)


@pytest.mark.nightly("as Qwen2.5-VL, but for models that no other test needs")
@each_runner
def test_a_head_whose_axes_take_turns(with_depths: Path, tmp_path: Path, runner: dict[str, str]):
    head = pictured_depths.write_head(tmp_path)
    text_model, mixed = pictured_depths.TEXT_MODEL, pictures.in_turns
    judged = judge(
        with_depths, head, lambda text: pictures.PicturedHead(head, text, text_model, mixed)
    )
    drawn = runner == RUNNER_V2
    run(judged, "eagle3", runner, drawn=drawn, long_prefill_token_threshold=K + 1)
    assert judged.accepted()[0] > 0


@pytest.fixture(scope="module")
def with_mtp(tmp_path_factory: pytest.TempPathFactory) -> Judged:
    whole, head = pictured_hybrid.write(tmp_path_factory.mktemp("hybrid"))
    return judge(whole, whole, lambda text: pictures.PicturedMtp(whole, text, head))


@pytest.mark.nightly("takes minutes")
@each_runner
def test_a_layer_that_is_given_pictures(with_mtp: Judged, runner: dict[str, str]):
    """Qwen3.5 in chunks as long as verify steps: the layer has the target's own embeddings."""
    run(with_mtp, "mtp", runner, long_prefill_token_threshold=K + 1, enable_prefix_caching=False)
    assert with_mtp.accepted()[0] > 0

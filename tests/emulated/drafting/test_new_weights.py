# SPDX-License-Identifier: Apache-2.0
"""A target or a draft that is given other weights while requests run: drafts are right throughout.

The draft's come by vLLM's transfer of weights from a trainer, the target's from another checkpoint.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.emulated.drafting import probes
from tests.support import (
    eight_bit_pairs,
    eight_bits,
    engine,
    hosts,
    programs,
    reference,
    speculation,
)
from tests.support.pairs import TIES, scenario, text_prompts
from tests.support.stock import RUNNER_V2, each_runner
from tests.support.tiny_models import model_directory

MAX_TOKENS, STEPS = 32, 5
ENGINE = {
    "async_scheduling": False,
    "worker_extension_cls": "tests.support.reloading.Extension",
    "additional_config": {"weight_nz_mode": 0},
}
COARSER = 16
"""Times that the old keys and values are rounded coarser than they must be: by the old scales other
tokens would be drafted."""
NUMBERS = (2, 3, 4, 5)
"""Of the standard prompts."""
DECIDED = (1, 2, 6, 7)
"""Those behind which rounding to whole numbers decides no token of Qwen3, with either weights."""
GRAPHS = {"graphs": "FULL_DECODE_ONLY", "capture_sizes": (4, 8, 16)}


def with_noise(model: Path, directory: Path, only: str = "") -> Path:
    """A copy of a checkpoint, each of whose matrices is a little another one.

    ``only``: how the names of those begin; what a drafting layer shares with its target stays.
    """
    shutil.copytree(model, directory)
    generator = torch.Generator().manual_seed(1)
    for file in directory.glob("*.safetensors"):
        weights = load_file(file)
        for name, weight in weights.items():
            if not name.startswith(only) or (only and "embed" in name) or "shared_head" in name:
                continue
            noise = torch.randn(weight.shape, generator=generator)
            weights[name] = (weight + 0.4 * weight.float().std() * noise).to(weight.dtype)
        save_file(weights, file, metadata={"format": "pt"})
    return directory


@dataclass(frozen=True)
class Ran:
    """What an engine did; tokens and proposals before the new weights and with them."""

    answer: dict[str, Any]
    tokens: tuple[list[reference.DraftProposal], list[reference.DraftProposal]]
    proposals: tuple[list[reference.DraftProposal], list[reference.DraftProposal]]


def ran(
    case: engine.Scenario,
    runner: dict[str, str],
    target: str = "llama_target",
    numbers: Sequence[int] = NUMBERS,
    **asked: Any,
) -> Ran:
    """Run the prompts ``numbers``; after a few steps the engine gets new weights, as ``asked``."""
    every = text_prompts(model_directory(target))
    texts = [every[number] for number in numbers]
    limits = {"steps": STEPS, "max_tokens": MAX_TOKENS}
    request = {"engine": case.engine_arguments(), "prompts": texts, **limits, **asked}
    answer = programs.answer_of(probes.new_weights, request, runner)
    first, later = [], []
    for text, before, tokens in zip(texts, answer["before"], answer["tokens"], strict=True):
        assert len(tokens) == MAX_TOKENS
        assert tokens[: len(before)] == before
        first.append(reference.DraftProposal(text, before))
        later.append(reference.DraftProposal(text + before, tokens[len(before) :]))
    assert all(len(part.tokens) >= 5 for part in [*first, *later])
    proposals = [reference.DraftProposal(**proposal) for proposal in answer["proposals"]]
    number = answer["proposed_before"]
    return Ran(answer, (first, later), (proposals[:number], proposals[number:]))


def wrong(checkpoint: Path, tokens: list[reference.DraftProposal]) -> int:
    """Tokens that are not a model's greedy ones."""
    return len(reference.check_drafts(checkpoint, tokens, near_tie()).wrong)


def near_tie() -> float:
    return TIES[engine.compared_dtype()][0]


def assert_drafted_by(
    old: speculation.Drafter,
    new: speculation.Drafter,
    result: Ran,
    graphs: bool,
    tie: float | None = None,
) -> None:
    """Every draft token is the old one's before the new weights, and the new one's with them."""

    def judged(
        drafter: speculation.Drafter, proposals: list[reference.DraftProposal]
    ) -> reference.DraftReport:
        return reference.judge(drafter.rows, proposals, near_tie() if tie is None else tie)

    before, behind = result.proposals
    for report in (judged(old, before), judged(new, behind)):
        assert report.checked > 30
        assert not report.wrong, "\n".join(map(str, report.wrong[:5]))
    assert len(judged(old, behind).wrong) > 5, "the judge notices"
    assert (result.answer["replays"] > 10) == graphs


@each_runner
def test_a_head_goes_on_with_new_weights(tmp_path, runner):
    """It shares the target's embeddings and output matrix; its graphs were captured before."""
    old = model_directory("llama_target")
    new = with_noise(old, tmp_path / "new")
    case = scenario(
        "llama_target", "llama_eagle", speculative={"method": "eagle"}, engine=ENGINE, **GRAPHS
    )
    result = ran(case, runner, path=str(new))

    assert not wrong(old, result.tokens[0])
    assert not wrong(new, result.tokens[1])
    assert wrong(old, result.tokens[1]) > 5, "the judge notices"
    drafters = [speculation.DraftHead(model_directory("llama_eagle"), it) for it in (old, new)]
    assert_drafted_by(*drafters, result, graphs=True)


SENT = {**ENGINE, "weight_transfer_config": {"backend": "npu_ipc"}}
only_on_0_30 = hosts.only_on("vllm_ascend_0_30", "vLLM 0.23.0 sends weights to targets alone")


@each_runner
@only_on_0_30
def test_a_draft_is_sent_new_weights(tmp_path, runner):
    target, draft = model_directory("llama_target"), model_directory("gemma3_draft")
    new = with_noise(draft, tmp_path / "new")
    case = scenario("llama_target", "gemma3_draft", engine=SENT)
    result = ran(case, runner, path=str(new), sent={"packed": False})
    for tokens in result.tokens:
        assert not wrong(target, tokens)
    assert_drafted_by(*map(speculation.DraftModel, (draft, new)), result, graphs=False)


@each_runner
@only_on_0_30
def test_a_head_that_is_sent_embeddings_shares_its_targets(tmp_path, runner):
    """In graphs. The target's own are taken, any others refused before they are anywhere."""
    target, draft = model_directory("llama_target"), model_directory("llama_eagle3")
    new = with_noise(draft, tmp_path / "new")
    case = scenario(
        "llama_target", "llama_eagle3", speculative={"method": "eagle3"}, engine=SENT, **GRAPHS
    )
    result = ran(case, runner, path=str(new), sent={"packed": True, "shared": str(target)})
    assert "model.embed_tokens.weight that is not its target's" in result.answer["refused"]
    for tokens in result.tokens:
        assert not wrong(target, tokens)
    drafters = [speculation.DraftHead(head, target) for head in (draft, new)]
    assert_drafted_by(*drafters, result, graphs=True)


@each_runner
@only_on_0_30
@pytest.mark.parametrize(
    ("target", "draft", "method", "ours"),
    [
        ("llama_target", "deepseek_v2_draft", "draft_model", ""),
        ("deepseek_v2_target", "deepseek_v3_mtp", "mtp", "model.layers.2."),
        ("gpt_oss", "gpt_oss_dflash", "dflash", ""),
        ("gpt_oss", "gpt_oss_dspark", "dspark", ""),
        ("llama_target", "granite4", "draft_model", ""),
    ],
    ids=["MLA", "mtp", "dflash", "dspark", "Mamba2"],
)
def test_what_a_draft_makes_of_its_weights(tmp_path, runner, target, draft, method, ours):
    """In graphs, which hold it: matrices of MLA's latents, of experts, of DFlash's context.

    Of Mamba2 the loader makes decays; its convolutions have other shapes once they are loaded.

    ``ours``: how names of the draft's weights begin, in a checkpoint with the target's.
    """
    old = model_directory(draft)
    new = with_noise(old, tmp_path / "new", only=ours)
    case = scenario(
        draft if ours else target, draft, speculative={"method": method}, engine=SENT, **GRAPHS
    )
    result = ran(case, runner, target, path=str(new), sent={"packed": True, "only": ours})
    for tokens in result.tokens:
        assert not wrong(model_directory(target), tokens)
    k = case.num_speculative_tokens
    drafters = [drafter_at(model, model_directory(target), method, k) for model in (old, new)]
    # Proposals of dspark on model runner V2 are vllm-ascend's own, whose replays nobody counts.
    assert_drafted_by(*drafters, result, graphs=method != "dspark" or not runner)


def drafter_at(checkpoint: Path, target: Path, method: str, k: int) -> speculation.Drafter:
    if method == "draft_model":
        return speculation.DraftModel(checkpoint)
    if method in ("dflash", "dspark"):
        return speculation.DraftBlock(checkpoint, target, k)
    return speculation.DraftHead(checkpoint, target)


@dataclass(frozen=True)
class DraftOf8Bits:
    """A quantised draft.

    Attributes:
        checkpoint: its weights.
        at_once: contexts whose keys were computed in one step, plain ones; the longest first.
    """

    checkpoint: Path
    at_once: list[list[int]]

    def rows(self, context: Sequence[int], drafted: Sequence[int]) -> torch.Tensor:
        begun = (one for one in self.at_once if list(context[: len(one)]) == one)
        plain = next(len(one) for one in begun if len(one) < len(context))
        return eight_bits.rows(self.checkpoint, context, drafted, plain)


@only_on_0_30
@pytest.mark.parametrize(
    ("quantised", "coarser", "numbers", "runner"),
    [
        ({"weights": eight_bits.STATIC}, 1, DECIDED, {}),
        ({"cache": True}, COARSER, NUMBERS, RUNNER_V2),
    ],
    ids=["inputs", "keys and values"],
)
def test_a_draft_of_8_bits(tmp_path, quantised, coarser, numbers, runner):
    """In graphs, which read what its layers make of scales."""
    changed = with_noise(model_directory("qwen3_wide"), tmp_path / "changed")
    old = eight_bits.quantised("qwen3_wide", **quantised, coarser=coarser)
    new = eight_bits.quantised(changed, **quantised)
    target = model_directory("llama_target")
    case = eight_bit_pairs.case_of(target, old, engine=SENT, **GRAPHS)
    result = ran(case, runner, numbers=numbers, path=str(new), sent={"packed": True})
    first, later = ([one.context for one in part] for part in result.tokens)
    drafters = [DraftOf8Bits(checkpoint, [*later, *first]) for checkpoint in (old, new)]
    assert_drafted_by(*drafters, result, graphs=True, tie=eight_bit_pairs.near_tie_of(old))

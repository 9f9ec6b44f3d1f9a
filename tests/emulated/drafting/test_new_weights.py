# SPDX-License-Identifier: Apache-2.0
"""A target that is given other weights while requests run: drafts are right before and behind."""

from __future__ import annotations

import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from tests.support import engine, programs, reference
from tests.support.loop_judgement import drafter_of
from tests.support.pairs import TIES, scenario, text_prompts
from tests.support.stock import each_runner
from tests.support.tiny_models import model_directory

PROBE = Path(__file__).with_name("new_weights_probe.py")
MAX_TOKENS, STEPS = 32, 5


def with_noise(model: Path, directory: Path) -> Path:
    """A copy of a checkpoint, each of whose matrices is a little another one."""
    shutil.copytree(model, directory)
    generator = torch.Generator().manual_seed(1)
    for file in directory.glob("*.safetensors"):
        weights = load_file(file)
        for name, weight in weights.items():
            noise = torch.randn(weight.shape, generator=generator)
            weights[name] = (weight + 0.4 * weight.float().std() * noise).to(weight.dtype)
        save_file(weights, file, metadata={"format": "pt"})
    return directory


@each_runner
def test_a_head_goes_on_with_new_weights(tmp_path, runner):
    """It shares the target's embeddings and output matrix; its graphs were captured before."""
    old = model_directory("llama_target")
    new = with_noise(old, tmp_path / "new")
    case = scenario(
        "llama_target",
        "llama_eagle",
        speculative={"method": "eagle"},
        engine={
            "async_scheduling": False,
            "worker_extension_cls": "tests.support.reloading.Extension",
            "additional_config": {"weight_nz_mode": 0},
        },
        graphs="FULL_DECODE_ONLY",
        capture_sizes=(4, 8, 16),
    )
    texts = text_prompts(old)[2:6]
    limits = {"steps": STEPS, "max_tokens": MAX_TOKENS, "path": str(new)}
    asked = {"engine": case.engine_arguments(), "prompts": texts, **limits}
    answer = programs.answer_of(PROBE, asked, runner)

    near_tie, _ = TIES[engine.compared_dtype()]
    first, later = [], []
    for text, before, tokens in zip(texts, answer["before"], answer["tokens"], strict=True):
        assert len(tokens) == MAX_TOKENS
        assert tokens[: len(before)] == before
        first.append(reference.DraftProposal(text, before))
        later.append(reference.DraftProposal(text + before, tokens[len(before) :]))
    assert all(len(part.tokens) >= 5 for part in [*first, *later])
    assert not reference.check_drafts(old, first, near_tie).wrong
    assert not reference.check_drafts(new, later, near_tie).wrong
    assert len(reference.check_drafts(old, later, near_tie).wrong) > 5, "the judge notices"

    proposals = [reference.DraftProposal(**proposal) for proposal in answer["proposals"]]
    number = answer["proposed_before"]

    def judged(target, drafts):
        drafter = drafter_of(target, "llama_eagle", "eagle", case.num_speculative_tokens)
        return reference.judge(drafter.rows, drafts, near_tie)

    for report in (judged(old, proposals[:number]), judged(new, proposals[number:])):
        assert report.checked > 30
        assert not report.wrong, "\n".join(map(str, report.wrong[:5]))
    assert len(judged(old, proposals[number:]).wrong) > 5, "the judge notices"
    assert answer["replays"] > 10

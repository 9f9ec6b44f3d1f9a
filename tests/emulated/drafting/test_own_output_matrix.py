# SPDX-License-Identifier: Apache-2.0
"""Drafting layers (method ``mtp``) whose checkpoint has an output matrix of its own.

It lies in the layer, or beside it where the layer's class takes that of a whole checkpoint. The
draft is judged with that matrix: with the target's, many of its tokens would be others. One of the
checkpoints has further modules, of noise, which are not loaded: the first drafts each token.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.support import engine, reference, speculation
from tests.support.loop_judgement import (
    NEW_TOKENS,
    SHORT_CHUNKS,
    SMALL_ENGINE,
    WITH_STATES,
    decided_outputs,
    in_order,
)
from tests.support.marks import needs_float32
from tests.support.pairs import scenario
from tests.support.stock import each_runner
from tests.support.tiny_models import model_directory
from tests.support.tiny_models.derived import load_head

pytestmark = needs_float32

K = MODULES = 3
NOISE = 1.0
"""Standard deviation of what is added to the target's matrix, as a share of that of the matrix."""
WEIGHTS = "model.safetensors"
HEADS = {
    "in the layer": ("glm4_moe_wide", "glm4_moe_wide_mtp", "shared_head.head.weight"),
    "beside the layers": ("qwen3_next", "qwen3_next_mtp", "lm_head.weight"),
}
"""Target, its checkpoint with a drafting layer, and how the matrix's name in it ends."""


def other_matrix(target: Path) -> torch.Tensor:
    """An output matrix like the target's, but for noise."""
    matrix = load_file(target / WEIGHTS)["lm_head.weight"].float()
    noise = torch.randn(matrix.shape, generator=torch.Generator().manual_seed(0))
    return matrix + NOISE * matrix.std() * noise


def write_draft(trained: Path, ending: str, matrix: torch.Tensor, folder: Path) -> Path:
    """A copy of the checkpoint ``trained`` in ``folder`` whose drafting layer has ``matrix``."""
    shutil.copytree(trained, folder)
    weights = load_file(folder / WEIGHTS)
    (name,) = [name for name in weights if name.endswith(ending)]
    weights[name] = matrix.to(weights[name].dtype)
    if layer := re.match(r"model\.layers\.(\d+)\.", name):
        add_modules(weights, int(layer[1]))
        config = json.loads((folder / "config.json").read_text())
        config["num_nextn_predict_layers"] = MODULES
        (folder / "config.json").write_text(json.dumps(config))
    save_file(weights, folder / WEIGHTS, metadata={"format": "pt"})
    return folder


def add_modules(weights: dict[str, torch.Tensor], first: int) -> None:
    """Add modules of noise behind the drafting layer ``first``."""
    own = f"model.layers.{first}."
    for name in [name for name in weights if name.startswith(own)]:
        for behind in range(1, MODULES):
            other = name.replace(own, f"model.layers.{first + behind}.")
            weights[other] = torch.randn_like(weights[name])


@dataclass(frozen=True)
class DraftLayer:
    """The drafting layer in ``checkpoint`` with the output matrix ``matrix``: a ``Drafter``."""

    checkpoint: Path
    target: Path
    matrix: torch.Tensor

    @property
    def question(self) -> dict[str, str]:
        """What the layer is besides its checkpoint."""
        return {"output matrix": str(self.matrix.double().sum().item())}

    @cached_property
    def head(self):
        return load_head(self.checkpoint, reference.load_model(self.target))

    def rows(self, context: Sequence[int], drafted: Sequence[int]) -> torch.Tensor:
        """Logits after the context, of which the target has seen all but the last token."""
        head = self.head
        head.logits = lambda states: states @ self.matrix.T
        with torch.inference_mode():
            known = head.known(speculation.hidden_states_of(self.target, tuple(context[:-1])))
            return speculation.rows_of_head(head, known, context, drafted)


@pytest.mark.nightly("other cases of it stay", cases=["*-beside the layers", "v1-*"])
@pytest.mark.parametrize("where", HEADS)
@each_runner
def test_each_draft_token_comes_from_the_layers_own_matrix(runner, where, tmp_path):
    name, trained, ending = HEADS[where]
    target, layer = model_directory(name), model_directory(trained)
    matrix = other_matrix(target)
    drafter = DraftLayer(layer, target, matrix)
    decided = decided_outputs(target, drafter, K)
    outputs = [output for _, output in decided]
    case = scenario(
        trained,
        prompts=[prompt for prompt, _ in decided],
        max_tokens=NEW_TOKENS,
        num_speculative_tokens=K,
        speculative={"method": "mtp"},
        engine={**(WITH_STATES if name == "qwen3_next" else SMALL_ENGINE), **SHORT_CHUNKS},
        environment=dict(runner),
        record_drafts=True,
    )
    draft = write_draft(layer, ending, matrix, tmp_path / "draft")
    result = engine.run(replace(case, draft=str(draft)))

    assert len([row for row in result.layers if row["role"] == "draft"]) == 1
    assert result.tokens == [output.tokens for output in outputs]
    wanted = [proposal for output in outputs for proposal in output.proposals]
    assert in_order(result.proposals) == in_order(wanted)
    accepted = [sum(one) for one in zip(*(o.accepted_per_position for o in outputs), strict=True)]
    assert result.accepted_per_position == accepted
    assert 0 < accepted[-1] < accepted[0] < len(wanted)
    # By the target's matrix, many of them would be others.
    with_targets = DraftLayer(layer, target, load_file(target / WEIGHTS)["lm_head.weight"].float())
    others = sum(
        speculation.draft(with_targets, proposal.context, K).tokens != proposal.tokens
        for proposal in wanted
    )
    assert others > 0.2 * len(wanted)

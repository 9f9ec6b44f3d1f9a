# SPDX-License-Identifier: Apache-2.0
"""Which cells of the matrix a model judges that rounds, and which model and requests those are."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from benchmarks.matrix import judging, prompts, rounded_models, running
from benchmarks.matrix.cells import all_cells, find_cells
from benchmarks.matrix.families import FLOAT32, ROUNDED
from benchmarks.matrix.rounded import RoundedJudge
from benchmarks.matrix.running import HITS, HITS_V2, OURS
from mkv_ascend.checks.unserved_family import unserved
from tests.support import deepseek_v4, hosts, rounded_step3p5, speculation
from tests.support.tiny_models.recipes import find_recipe


def test_step3p5_is_asked_for_as_its_host_serves_it() -> None:
    """In float32 where that is served, for only then can tokens be known beforehand."""
    families = hosts.ADAPTER.RULES.unserved_families
    for cell in find_cells(["step3.5/"]):
        names = find_recipe(cell.reference_model).architecture["architectures"]
        dtype = cell.engine.get("dtype", "float32")
        assert unserved(families, names, dtype) is None
        assert (dtype == "float32") == (unserved(families, names, "float32") is None)
        assert cell.reference == (FLOAT32 if dtype == "float32" else ROUNDED)


def test_each_family_in_16_bits_has_a_model() -> None:
    named = {cell.target for cell in all_cells() if cell.reference == ROUNDED}
    assert named
    assert named <= rounded_models.MODELS.keys()


@pytest.mark.parametrize(
    ("name", "side", "workload"),
    [
        ("deepseek-v4/dense", OURS, rounded_models.MIXED),
        ("deepseek-v4/mtp", HITS, rounded_models.COMMON),
        ("step3.5/dense", OURS, rounded_models.TEXTS),
        ("step3.5/mtp", HITS_V2, prompts.COMMON),
    ],
)
def test_requests_and_drafters_are_those_of_the_family(
    name: str, side: str, workload: prompts.Workload, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(judging, "model_directory", Path)
    monkeypatch.setattr(rounded_models, "model_directory", Path)
    monkeypatch.setattr("tests.support.loop_judgement.model_directory", Path)
    (cell,) = find_cells([name])
    judge = running.judge_of(dataclasses.replace(cell, reference=ROUNDED), side)
    assert isinstance(judge, RoundedJudge)
    assert judge.workload is workload
    target, draft = Path(cell.reference_model), Path(cell.draft_model or "")
    expected = {
        "deepseek-v4/dense": speculation.DraftModel(draft),
        "deepseek-v4/mtp": deepseek_v4.DraftLayer(target),
        "step3.5/dense": rounded_step3p5.RoundedDraftModel(draft),
        "step3.5/mtp": rounded_step3p5.RoundedLayer(draft, target),
    }
    assert judge.drafter() == expected[name]

# SPDX-License-Identifier: Apache-2.0
"""Cells of the matrix (``make matrix`` runs all of them): each ends as docs/matrix.json says.

A cell that works gave Hugging Face's tokens, proposed what the draft itself says after every
context, and accepted as many of these tokens as plain loops do, with prompts in chunks and a
request that was preempted (``benchmarks/matrix/judging.py``).

Pairs that other tests judge are not run twice: these tests are listed here, so that each row and
each column of the matrix is seen to be run at least once.
"""

import ast
from importlib.metadata import version
from pathlib import Path

import pytest

import matrix_pages
from benchmarks.matrix import cells, running, table
from tests.emulated import probes
from tests.support import programs
from tests.support.loop_judgement import PAIRS
from tests.support.marks import needs_float32

CELLS = [
    "dense/window+full",
    "dense/gdn",
    "mla/window+full",
    "dsa/window+full",
    "mamba2/short conv",
    "short conv/dense",
    "glm4-moe/mtp",
    "minimax-m2/eagle3",
    "mimo/mtp",
    "gemma4/mtp",
    "qwen3.5-moe/mtp",
    "kda/dense",
    "nemotron-h/mtp",
    "hunyuan3/mtp",
    "ernie4.5-moe/mtp",
    "longcat/mtp",
    "step3.5/mtp",
    "glm4.7-flash/mtp",
    "exaone-moe/mtp",
    "openpangu/mtp",
    "mimo-v2/mtp",
    "qwen3/dense",
    "qwen3-moe/dense",
    "qwen3.5/dense",
]
"""Ways in which layers of target and draft differ that no other test runs so."""
NEED_TRITON = (
    *("minimax-m2/eagle3", "qwen3.5-moe/mtp", "qwen3.5/dense", "kda/dense"),
    "nemotron-h/mtp",
)
"""These do not start where vLLM finds no Triton; the other families of ``CELLS`` do."""

WITH_HITS = ["window+full/mla", "gpt-oss/dflash", "gemma4/mtp", "mamba2/gdn"]
"""Run once more in graphs with prefix hits, scheduled asynchronously: caches of several sizes, a
block of mask tokens, a head that reads the target's keys, states in target and draft (the draft's
hold all tokens: short convolutions, which hold the last three, notice a lost one by luck)."""

BY_PLAIN_LOOPS = [
    "dense/mla",
    "dense/eagle",
    "window+full/window+full",
    "window+full/dflash",
    "mla/mla",
    "mla/mtp",
    "gdn/dense",
    "gdn/mtp",
    "gpt-oss/eagle3",
]
"""Judged by test_drafting_reference.py as here, except for the preemption."""

EMULATED = Path(__file__).parents[1]
BY_EVERY_DRAFT_TOKEN = {
    "dense/short conv": "test_recurrent_drafts.py::test_targets_without_states_and_with_others",
    "dense/suffix": "test_pairs.py::test_suffix_decoding_says_which_package_it_needs",
    "window+full/eagle3": "test_auxiliary_states.py"
    "::test_states_are_hugging_faces_and_proposals_the_heads",
    "window+full/ngram": "test_pairs.py::test_ngram_proposes_what_followed_before",
    "dsa/dense": "test_sparse_models.py::test_dense_draft_with_preemption",
    "dsa/mla": "test_sparse_models.py::test_dense_draft_with_preemption",
    "gpt-oss/dspark": "test_markov_heads.py"
    "::test_proposals_and_acceptance_are_those_of_plain_loops",
    "deepseek-v4/dense": "test_deepseek_v4.py::test_dense_draft",
    "deepseek-v4/mtp": "test_deepseek_v4.py"
    "::test_tokens_are_the_references_and_drafts_its_mtp_layers",
    "gdn/mamba2": "test_recurrent_drafts.py::test_targets_without_states_and_with_others",
    "mamba2/dense": "test_mamba_models.py::test_states_are_taken_back_to_what_was_accepted",
    "mamba2/gdn": "test_recurrent_drafts.py::test_states_of_target_and_draft_on_several_ranks",
    "mamba2/eagle3": "test_auxiliary_states.py"
    "::test_states_are_hugging_faces_and_proposals_the_heads",
}
"""There every token is the reference's and every draft token the draft's own; acceptance is not
counted by loops, except of dspark's, which only vllm-ascend 0.30.0rc2 has. Suffix decoding is
refused, there as in the matrix."""


@pytest.mark.host("0.23", cases=["dsa/window+full", "gemma4/mtp", "short conv/dense"])
@pytest.mark.host("0.30", cases=["kda/dense"])
@pytest.mark.nightly(
    "published by `make matrix`: it trains models of its own, or is as rows that stay",
    cases=[
        "*-h/mtp",
        "*-moe/mtp",
        "dense/gdn",
        "dense/window+full",
        "glm4.7-*",
        "hunyuan3/mtp",
        "longcat/mtp",
        "mamba2/short conv",
        "mimo-*",
        "mimo/mtp",
        "minimax-*",
        "mla/window+full",
        "openpangu/mtp",
        "qwen3-*",
        "qwen3.5/dense",
        "qwen3/dense",
        "step3.5/mtp",
    ],
)
@needs_float32
@pytest.mark.parametrize("name", CELLS)
def test_a_cell_ends_as_published(name):
    assert_ends_as_published(name, running.OURS)


@pytest.mark.host("0.23", cases=["mamba2/gdn", "window+full/mla"])
@needs_float32
@pytest.mark.parametrize("name", WITH_HITS)
def test_a_cell_with_prefix_hits_ends_as_published(name):
    assert_ends_as_published(name, running.HITS)


def assert_ends_as_published(name, side):
    (cell,) = cells.find_cells([name])
    (published,) = [
        row
        for row in matrix_pages.read()["cells"]
        if (row["target"], row["draft"]) == (cell.target, cell.draft)
    ]
    if name in NEED_TRITON:
        variables = {"EMULATED_NPU_TRITON": "1"}
        verdict = running.Verdict(**programs.answer_of(probes.cell, name, variables))
    else:
        verdict = running.run(cell, side)
    if not table.is_first_host():
        published = published["hosts"][version("vllm-ascend")]
    assert verdict.outcome == published[side], verdict.reason
    assert verdict.outcome != running.FAILS, verdict.reason
    if verdict.outcome == running.WORKS and cell.draft_model is not None:
        # Neither a hopeless draft nor one that is never rejected would show much.
        assert 0.2 < verdict.acceptance < cells.K


@pytest.mark.host("0.23")
def test_each_row_and_column_is_run():
    names = [*CELLS, *BY_PLAIN_LOOPS, *BY_EVERY_DRAFT_TOKEN]
    assert len(set(names)) == len(names), "a cell is listed twice"
    run, every = cells.find_cells(names), cells.find_cells([])
    assert {cell.target for cell in run} == {cell.target for cell in every}
    assert {cell.draft for cell in run} == {cell.draft for cell in every}


@pytest.mark.host("0.23")
@pytest.mark.parametrize("name", BY_PLAIN_LOOPS)
def test_plain_loops_judge_the_models_of_the_cell(name):
    (cell,) = cells.find_cells([name])
    judged = [(target, draft, method) for target, draft, method, _ in PAIRS]
    assert (cell.target_model, cell.draft_model, cell.method) in judged


@pytest.mark.host("0.23")
@pytest.mark.parametrize("name", BY_EVERY_DRAFT_TOKEN)
def test_the_test_of_the_cell_exists_and_names_its_models(name):
    (cell,) = cells.find_cells([name])
    path, _, function = BY_EVERY_DRAFT_TOKEN[name].partition("::")
    text = next(EMULATED.rglob(path)).read_text(encoding="utf-8")
    assert function in {
        node.name for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)
    }
    # Heads are named after their target there.
    models = {cell.target_model, cell.draft_model} - {None, f"{cell.target_model}_{cell.method}"}
    assert models
    assert {model for model in models if f'"{model}"' not in text} == set()

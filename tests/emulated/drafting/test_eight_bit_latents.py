# SPDX-License-Identifier: Apache-2.0
"""Latents of MLA in 8 bits (``fa_quant_type``): where a node reads prompts they stay plain."""

import pytest

from tests.support import eight_bit_latents, engine, speculation
from tests.support.eight_bit_pairs import (
    AtOnce,
    assert_accepted_as_counted,
    assert_said,
    case_of,
    rows_of,
    said,
)
from tests.support.stock import each_runner
from tests.support.tiny_models import model_directory

PLAIN = "deepseek_v2_target"
WITH_MTP = "deepseek_v3_mtp"


def described(name, tmp_path):
    return eight_bit_latents.described(model_directory(name), tmp_path / "target")


def judged(case, result, draft_rows):
    """Tokens by the target with plain latents, draft tokens by the draft."""
    assert_said(rows_of(model_directory(PLAIN), AtOnce(case)), said(case, result))
    assert_said(draft_rows, result.proposals)
    assert_accepted_as_counted(case, result)


@pytest.mark.nightly("with a layer that drafts, plain latents stay")
@each_runner
def test_a_dense_draft(runner, tmp_path):
    draft = model_directory("llama_draft")
    case = case_of(described(PLAIN, tmp_path), draft, environment=runner)
    judged(case, engine.run(case), rows_of(draft, AtOnce(case)))


@pytest.mark.host("0.23", cases=["v1"])
@pytest.mark.nightly("other cases of it stay", cases=["v2"])
@each_runner
def test_its_own_drafting_layer(runner, tmp_path):
    target = described(WITH_MTP, tmp_path)
    case = case_of(target, target, environment=runner, speculative={"method": "mtp"})
    drafter = speculation.DraftHead(model_directory(WITH_MTP), model_directory(PLAIN))
    judged(case, engine.run(case), drafter.rows)

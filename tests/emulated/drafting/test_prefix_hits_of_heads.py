# SPDX-License-Identifier: Apache-2.0
"""Prefix hits with drafts that shift their input: a block fewer than without, and no wrong draft.

The draft's last row of a block is made from the token after it, the first of the next block. So
requests that differ from there on share every row except that one, and the last block of a hit is
computed again.
"""

import pytest

from tests.support import engine, reference, speculation
from tests.support.pairs import TIES, scenario
from tests.support.prompts import text_prompts as texts
from tests.support.stock import each_runner
from tests.support.tiny_models import model_directory

BLOCK = 128
STEM = 2 * BLOCK
ENDINGS = 4
# Target, draft, method, and the model that Hugging Face runs as the target.
HEADS = [
    ("gpt_oss", "gpt_oss_eagle3", "eagle3", "gpt_oss"),
    ("deepseek_v3_mtp", "deepseek_v3_mtp", "mtp", "deepseek_v2_target"),
]


@each_runner
@pytest.mark.parametrize(("target", "draft", "method", "reference_target"), HEADS)
def test_a_shifted_draft_gives_up_one_block_and_is_right(
    target, draft, method, reference_target, runner
):
    directory = model_directory(reference_target)
    ids = reference.token_ids(directory, " ".join(texts()))
    stems = [ids[:1] + ids[start + 1 : start + STEM] for start in (0, 40)]
    endings = [ids[start : start + 2] for start in range(300, 300 + 7 * ENDINGS, 7)]
    case = scenario(
        target,
        draft,
        prompts=[stem + ending for stem in stems for ending in endings],
        max_tokens=8,
        speculative={"method": method},
        environment=runner,
        # One after another: each request finds the stem of the one before it.
        engine={"enable_prefix_caching": True, "max_num_seqs": 1},
    )
    result = engine.run(case)
    # One wrong row of 256 changes few choices of these drafts: it is the hits that tell.
    # Without a draft a hit is all whole blocks before the last token (test_layout_engines.py).
    assert result.cached_tokens == [0, *[STEM - BLOCK] * (ENDINGS - 1)] * len(stems)

    drafter = speculation.DraftHead(model_directory(draft), directory)
    near_tie, _ = TIES[engine.compared_dtype()]
    report = reference.judge(drafter.rows, result.proposals, near_tie)
    assert report.checked == case.num_speculative_tokens * len(result.proposals) > 0
    assert not report.wrong, "\n".join(map(str, report.wrong[:5]))
    assert result.mean_acceptance_length > 1.5

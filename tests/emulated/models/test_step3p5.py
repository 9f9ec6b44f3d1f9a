# SPDX-License-Identifier: Apache-2.0
"""Step-3.5 in bfloat16, the one dtype that vllm-ascend 0.30.0rc2 serves it in.

``tests/support/rounded_step3p5.py`` judges every token and every draft token: it rounds where the
engine does. What it does not choose itself must be a tie by the precision of bfloat16.
"""

import pytest

from benchmarks.matrix.cells import find_cells
from benchmarks.matrix.prompts import NEW_TOKENS
from benchmarks.matrix.rounded import RoundedJudge
from tests.support import engine, hosts, reference
from tests.support import rounded_step3p5 as rounded
from tests.support.stock import each_runner
from tests.support.tiny_models import model_directory

hosts.skip_module_unless("vllm_ascend_0_30", "0.23.0 serves it in float32, as the matrix has it")

ENGINE = {"dtype": "bfloat16", "max_num_batched_tokens": 96, "max_num_seqs": 4}


def assert_choices(rows, said):
    """Each token is the choice after those before it, or in a tie with it."""
    report = reference.judge(rows, said, near_tie=0.0)
    assert report.checked == sum(len(one.tokens) for one in said) > 0
    for found in report.wrong:
        one = said[found.proposal]
        row = rows(one.context, one.tokens)[found.position]
        assert row.max() - row[found.proposed] < rounded.undecided_below(row), found


@pytest.mark.nightly(
    "other cases of it stay", cases=["*-dense-*", "*-eager", "*-window+full-*", "v2-*"]
)
@pytest.mark.parametrize("graphs", [None, "FULL_DECODE_ONLY"], ids=["eager", "graphs"])
@pytest.mark.parametrize("cell", ["dense", "window+full", "mtp"])
@each_runner
def test_tokens_and_drafts_in_bfloat16(runner, cell, graphs):
    """Chunks beside requests that decode, past a window and a block of 128 tokens."""
    judge = RoundedJudge(*find_cells([f"step3.5/{cell}"]))
    case = engine.Scenario(
        str(model_directory(judge.cell.target_model)),
        str(model_directory(judge.cell.draft_model)),
        prompts=judge.requests(),
        max_tokens=NEW_TOKENS,
        engine=ENGINE,
        speculative={"method": judge.cell.method},
        record_drafts=True,
        environment=runner,
        graphs=graphs,
        capture_sizes=(4, 8, 16),
    )
    result = engine.run(case)
    assert "dtype=torch.bfloat16" in result.log
    pairs = zip(case.prompts, result.tokens, strict=True)
    assert_choices(judge.target_rows, [reference.DraftProposal(*pair) for pair in pairs])
    assert_choices(judge.drafter().rows, result.proposals)
    assert (result.draft_replays > 5) == (graphs is not None)
    count = judge.count(case.prompts, result)
    assert not count.strays
    assert result.num_drafts == count.verified > 25
    bounds = zip(count.least, result.accepted_per_position, count.most, strict=True)
    assert all(least <= accepted <= most for least, accepted, most in bounds), count
    # Neither a hopeless draft nor one that is never rejected would show much.
    assert 0.15 * count.verified < result.accepted_per_position[0]
    assert result.accepted_per_position[-1] < count.verified

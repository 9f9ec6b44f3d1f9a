# SPDX-License-Identifier: Apache-2.0
"""``vllm serve DRAFT``: a head in speculators' format names its target, and vLLM serves both."""

import dataclasses

from tests.support import engine, reference, speculation
from tests.support.marks import needs_float32
from tests.support.pairs import assert_greedy, prompts_of, scenario
from tests.support.speculators import write_head
from tests.support.stock import each_runner
from tests.support.tiny_models import model_directory

pytestmark = needs_float32
TARGET, HEAD = "llama_target", "llama_eagle3"


@each_runner
def test_every_draft_token_of_a_head_that_is_served_by_its_own_name(runner, tmp_path):
    served = write_head(HEAD, TARGET, tmp_path, tokens=3)
    case = scenario(
        TARGET,
        prompts=prompts_of(TARGET, [70, 40, 5]),
        max_tokens=32,
        environment=runner,
        record_drafts=True,
    )
    result = engine.run(dataclasses.replace(case, model=str(served)))
    target = model_directory(TARGET)
    assert_greedy(target, case.prompts, result.tokens, case.max_tokens)
    drafter = speculation.DraftHead(model_directory(HEAD), target)
    report = reference.judge(drafter.rows, result.proposals, speculation.TIE)
    assert not report.wrong, report.wrong[:5]
    assert report.checked > 20 * 3

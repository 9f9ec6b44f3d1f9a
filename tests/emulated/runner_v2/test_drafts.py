# SPDX-License-Identifier: Apache-2.0
"""Our drafts on model runner V2: every proposal is the one of plain Hugging Face loops."""

import pytest

from tests.support import hosts
from tests.support.loop_judgement import assert_reference
from tests.support.loop_pairs import PAIRS
from tests.support.marks import needs_float32
from tests.support.stock import RUNNER_V2

hosts.skip_module_unless("vllm_ascend_0_30", "0.23.0 runs model runner V1 alone")
pytestmark = needs_float32


@pytest.mark.core
@pytest.mark.nightly(
    "other cases of it stay",
    cases=["*-2", "*-4", "*-5", "*-mtp-*", "granite4-*", "lfm2-*", "llama_target-*"],
)
@pytest.mark.parametrize(("target", "draft", "method", "k"), PAIRS)
def test_proposals_and_acceptance_are_the_references(target, draft, method, k):
    assert_reference(target, draft, method, k, RUNNER_V2)


def test_a_target_whose_class_gives_no_states():
    assert_reference("gemma3", "gemma3_eagle3", "eagle3", 3, RUNNER_V2)

# SPDX-License-Identifier: Apache-2.0
"""Blocks that held something else: a draft never reads what was left there as a number."""

import pytest

from tests.emulated import probes
from tests.support import programs
from tests.support.pairs import scenario

pytestmark = pytest.mark.host("0.23")


@pytest.mark.parametrize("draft", ["gemma3_draft", "deepseek_v2_draft"])
def test_keys_that_were_never_written_are_not_what_states_left_there(draft):
    """Beside a target with states: a draft with dense layers and windows, and one with MLA."""
    case = scenario("lfm2", draft, num_speculative_tokens=3, speculative={"method": "draft_model"})
    request = {
        "engine": {**case.engine_arguments(), "async_scheduling": False},
        "prompts": case.prompts[:6],
        "max_tokens": 24,
    }
    result = programs.answer_of(probes.stale_blocks, request)
    assert result["clean"]["accepted"] < result["clean"]["drafted"], "no row is rejected"
    assert result["stale"] == result["clean"]

# SPDX-License-Identifier: Apache-2.0
"""Requests that begin with one token are not filled up with placeholders beside states."""

from types import SimpleNamespace
from typing import Any

import pytest

from tests.support import hosts

hosts.skip_module_unless("vllm_ascend_0_30", "vLLM 0.23.0 fills no request up")
schedule_no_placeholders = hosts.module("patches.scheduling").schedule_no_placeholders


@pytest.mark.parametrize(
    ("hybrid", "draft", "lookup"),
    [(True, None, [3, 3, 3]), (False, None, None), (False, True, [3, 3, 3]), (False, False, None)],
)
def test_requests_are_filled_up_only_without_states(
    hybrid: bool, draft: bool | None, lookup: Any
) -> None:
    """``draft``: whether a draft model has states; None: nothing drafts."""

    def initialised(scheduler: Any) -> None:
        scheduler.num_spec_tokens, scheduler.dynamic_sd_lookup = 3, None

    model = SimpleNamespace(is_hybrid=draft, is_attention_free=False)
    speculative = SimpleNamespace(draft_model_config=model, uses_draft_model=lambda: True)
    if draft is None:
        speculative = None
    scheduler = SimpleNamespace(
        vllm_config=SimpleNamespace(
            model_config=SimpleNamespace(is_hybrid=hybrid, is_attention_free=False),
            speculative_config=speculative,
            scheduler_config=SimpleNamespace(max_num_seqs=2),
        )
    )
    (replacement,) = schedule_no_placeholders.functions.values()
    replacement(initialised, scheduler)
    assert scheduler.dynamic_sd_lookup == lookup

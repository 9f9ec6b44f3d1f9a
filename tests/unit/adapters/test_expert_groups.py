# SPDX-License-Identifier: Apache-2.0
"""Where a draft's experts need a group of processes that vLLM has not made."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from mkv_ascend.adapters.common.patches.experts import only_draft_has_experts


@pytest.mark.parametrize(
    ("target", "draft", "needed"),
    [
        (False, True, True),
        (True, True, False),
        (False, False, False),
        (True, False, False),
        (False, None, False),
    ],
)
def test_a_group_is_made_for_the_draft_alone(
    target: bool, draft: bool | None, needed: bool
) -> None:
    model = None if draft is None else SimpleNamespace(is_moe=draft)
    config = SimpleNamespace(
        model_config=SimpleNamespace(is_moe=target),
        speculative_config=SimpleNamespace(draft_model_config=model),
    )
    assert only_draft_has_experts(config) is needed
    config.speculative_config = None
    assert only_draft_has_experts(config) is False

# SPDX-License-Identifier: Apache-2.0
"""Options of vllm-ascend 0.30.0 that our proposals refuse; their module imports nothing of it."""

from types import SimpleNamespace
from typing import Any

import pytest

from mkv_ascend.adapters.vllm_ascend_0_30.common.drafting.options import refuse_options


def config(**changes: Any) -> Any:
    served = {"draft_sample_method": "greedy", "use_heterogeneous_vocab": False}
    return SimpleNamespace(speculative_config=SimpleNamespace(**{**served, **changes}))


def test_what_is_served_is_not_refused() -> None:
    refuse_options(config(), None)


@pytest.mark.parametrize(
    ("changes", "window", "message"),
    [
        ({"draft_sample_method": "probabilistic"}, None, "probabilistic.*Leave it out"),
        ({"use_heterogeneous_vocab": True}, None, "use_heterogeneous_vocab.*choose a draft with"),
        ({}, 512, "draft_window_size.*Leave it out"),
    ],
)
def test_what_only_the_host_serves_is_refused(
    changes: dict[str, Any], window: int | None, message: str
) -> None:
    with pytest.raises(NotImplementedError, match=message):
        refuse_options(config(**changes), window)

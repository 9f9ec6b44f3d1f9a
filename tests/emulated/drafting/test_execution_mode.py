# SPDX-License-Identifier: Apache-2.0
"""What the start-up line says of how a draft's passes run."""

import pytest

pytestmark = pytest.mark.host("0.23")


@pytest.mark.parametrize(
    ("compiled", "graphs", "why", "says"),
    [
        (True, object(), None, "replayed from one graph"),
        # vllm-ascend 0.30.0rc2 asks for a compiled model there, and captures others all the same.
        (False, object(), None, "replayed from one graph"),
        (True, None, "it says so", "replayed from graphs: it says so."),
        (False, None, "it says so", "The draft runs eagerly."),
    ],
)
def test_a_draft_is_said_to_run_eagerly_where_nothing_is_captured(compiled, graphs, why, says):
    import vllm_ascend.ops  # noqa: F401  before the rest of it: its modules import in a circle

    from mkv_ascend.adapters.common.drafting.assembly import Assembly

    assembly = object.__new__(Assembly)
    assembly.replays_target = compiled
    assembly.graphs, assembly.why_eager = graphs, why
    assert says in assembly._execution_mode()

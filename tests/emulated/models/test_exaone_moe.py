# SPDX-License-Identifier: Apache-2.0
"""What K-EXAONE's experts need on vllm-ascend 0.23.0; cells of the matrix judge its tokens."""

from types import SimpleNamespace

import pytest
import torch

from tests.support import hosts

hosts.skip_module_unless("vllm_ascend_0_23", "what is replaced for it there is that host's")

import vllm_ascend.ops  # noqa: E402, F401  before the rest of it: its modules import in a circle

router = hosts.module("patches.target_fixes")


@pytest.mark.parametrize("internal", [False, True])
@pytest.mark.parametrize("shape", [(3, 4), (4,)])
def test_experts_are_given_scores_unless_they_ask_for_them(internal, shape):
    given = []

    class Experts:
        is_internal_router = internal

        def __call__(self, hidden_states, router_logits):
            given.append(router_logits)
            return 2 * hidden_states

    gate = torch.nn.Linear(4, 8, bias=False)
    layer = SimpleNamespace(experts=Experts(), gate=lambda rows: (gate(rows), None))
    states = torch.rand(shape)

    def original(layer, states):
        return layer.experts(states, states)

    (function,) = router.ask_the_router.functions.values()
    torch.testing.assert_close(function(original, layer, states), 2 * states)
    (scores,) = given
    wanted = states if internal else gate(states.view(-1, 4))
    torch.testing.assert_close(scores, wanted)

# SPDX-License-Identifier: Apache-2.0
"""What openPangu's drafting layer needs on vllm-ascend 0.23.0; a cell of the matrix judges it."""

import importlib
import sys
from types import SimpleNamespace

import pytest
import torch
import vllm_ascend.ops  # noqa: F401  before the rest of it: its modules import in a circle
from vllm.model_executor.models import openpangu_mtp

from tests.support import hosts

hosts.skip_module_unless("vllm_ascend_0_23", "what is replaced for it there is that host's")

drafts = hosts.module("patches.target_fixes")


class Block(torch.nn.Module):
    def forward(self, positions, hidden_states, residual):
        assert residual is None
        return hidden_states, 2 * hidden_states


def small(kind):
    """A drafting layer of ``kind`` that no constructor but torch's has run for."""
    layer = kind.__new__(kind)
    torch.nn.Module.__init__(layer)
    layer.enorm = layer.hnorm = torch.nn.Identity()
    layer.eh_proj = torch.nn.Linear(8, 4, bias=False)
    layer.mtp_block = Block()
    layer.shared_head = torch.nn.Softmax(dim=-1)
    return layer


@pytest.fixture
def forward():
    (function,) = drafts.as_vllm_wrote_it.functions.values()

    def original(layer, **given):
        return type(layer).forward(layer, **given)

    given = {
        "input_ids": torch.tensor([3, 5]),
        "positions": torch.tensor([0, 1]),
        "previous_hidden_states": torch.rand(2, 4),
        "inputs_embeds": torch.rand(2, 4),
    }
    return lambda layer: function(original, layer, **given)


def test_openpangus_layer_returns_one_tensor(forward):
    derived = type("Layer", (drafts.AscendDeepSeekMultiTokenPredictorLayer,), {})
    assert forward(small(derived)).shape == (2, 4)


def test_a_layer_of_vllms_own_class_runs_as_it_is(forward):
    below = drafts.AscendDeepSeekMultiTokenPredictorLayer.__mro__[1]
    assert forward(small(below)).shape == (2, 4)


def test_deepseeks_layer_stays_as_it_is():
    drafts.install()
    forward = vars(drafts.AscendDeepSeekMultiTokenPredictorLayer)["forward"]
    assert not hasattr(forward, "mkv_ascend_replacement")
    assert "forward" in vars(openpangu_mtp.OpenPanguMultiTokenPredictorLayer)


def test_openpangus_layer_derives_from_that_of_vllm_ascend(monkeypatch):
    """As in a worker, where nothing imports it before; else nothing would have to be replaced."""
    monkeypatch.delitem(sys.modules, openpangu_mtp.__name__)
    layer = importlib.import_module(openpangu_mtp.__name__).OpenPanguMultiTokenPredictorLayer
    assert issubclass(layer, drafts.AscendDeepSeekMultiTokenPredictorLayer)
    assert "__init__" in vars(layer)


# What K-EXAONE's experts need on vllm-ascend 0.23.0; cells of the matrix judge its tokens.

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

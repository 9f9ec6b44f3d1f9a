# SPDX-License-Identifier: Apache-2.0
"""What DeepSeek's drafting layer of vLLM 0.30.0 asks of its block is there, whatever the block."""

import pytest
import torch

from tests.support import hosts

hosts.skip_module_unless("vllm_ascend_0_30", "vLLM 0.23.0 asks blocks nothing")

import vllm_ascend.ops  # noqa: E402, F401  before the rest of it: its modules import in a circle
from vllm.model_executor.models.deepseek_mtp import (  # noqa: E402
    DeepSeekMultiTokenPredictorLayer,
)

HOST = hosts.module("drafting.host").HOST


def layer(kind, **answers):
    """A layer of ``kind`` that no constructor but torch's has run for, with a block."""
    made = kind.__new__(kind)
    torch.nn.Module.__init__(made)
    made.mtp_block = torch.nn.Identity()
    vars(made.mtp_block).update(answers)
    return made


class OfAnotherFamily(DeepSeekMultiTokenPredictorLayer):
    pass


@pytest.mark.parametrize(
    ("kind", "answers", "answer"),
    [
        (OfAnotherFamily, {}, False),
        (DeepSeekMultiTokenPredictorLayer, {"use_sequence_parallel_moe": True}, True),
        (torch.nn.Module, {}, None),
    ],
)
def test_blocks_answer_what_their_layer_asks(kind, answers, answer):
    model = torch.nn.ModuleList([layer(kind, **answers)])
    with HOST.building() as built:
        pass
    built(model)
    assert getattr(model[0].mtp_block, "use_sequence_parallel_moe", None) is answer


def test_rotary_embeddings_take_positions_as_they_come():
    """Those of method mtp would gather them from ranks that all have them."""
    of_a_head, of_another = torch.nn.Identity(), torch.nn.Identity()
    of_a_head.use_mtp, of_another.use_mtp = True, False
    with HOST.building() as built:
        pass
    built(torch.nn.ModuleList([of_a_head, of_another, torch.nn.Identity()]))
    assert (of_a_head.use_mtp, of_another.use_mtp) == (False, False)

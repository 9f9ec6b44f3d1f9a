# SPDX-License-Identifier: Apache-2.0
"""What LongCat-Flash needs on vllm-ascend 0.23.0, and what the matrix does not see of it.

Experts without matrices, two attentions of a layer, and weights of target and drafting layer side
by side. Cells of the matrix judge its tokens on one rank.
"""

from types import SimpleNamespace

import pytest
import torch

from tests.support import hosts
from tests.support.pairs import (
    run_judged,
    scenario,
    text_prompts,
)
from tests.support.tiny_models import model_directory

hosts.skip_module_unless("vllm_ascend_0_23", "what is replaced for it there is that host's")

import vllm_ascend.ops  # noqa: E402, F401  before the rest of it: its modules import in a circle
from vllm_ascend.ascend_forward_context import MoECommType  # noqa: E402
from vllm_ascend.ops.fused_moe.experts_selector import zero_experts_compute  # noqa: E402
from vllm_ascend.ops.fused_moe.moe_comm_method import FusedExpertsResult  # noqa: E402

experts = hosts.module("patches.experts")
weights = hosts.module("patches.target_fixes")
attentions = hosts.module("patches.target_fixes")


@pytest.mark.nightly("near to tests that stay")
def test_experts_without_matrices_count_once_for_all_ranks():
    """Each rank has its slice of every matrix, and parts are summed up; there are no others."""
    case = scenario(
        "longcat_flash",
        "llama_draft",
        prompts=text_prompts(model_directory("longcat_flash"), 5)[2:],
        max_tokens=16,
        graphs="FULL_DECODE_ONLY",
        capture_sizes=(12,),
        engine={"tensor_parallel_size": 2},
    )
    result = run_judged(case)
    assert result.draft_replays > 5


@pytest.mark.parametrize(
    ("method", "rank", "added"),
    [("ALLGATHER", 0, True), ("ALLGATHER", 1, False), ("ALLTOALL", 1, True), ("MC2", 3, True)],
)
def test_rows_are_added_by_one_of_the_ranks_that_have_them(method, rank, added, monkeypatch):
    context = SimpleNamespace(moe_comm_type=MoECommType[method])
    monkeypatch.setattr(experts, "_EXTRA_CTX", context)
    monkeypatch.setattr(experts, "get_ep_group", lambda: SimpleNamespace(rank_in_group=rank))
    ids = torch.tensor([[0, 2, 3], [1, 0, 1]], dtype=torch.int32)
    shares = torch.tensor([[0.5, 0.3, 0.1], [0.2, 0.2, 0.2]])
    states = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    given = {"num_experts": 2, "zero_expert_type": "identity", "hidden_states": states}
    chosen, kept, rows = experts.tell_the_layer.functions[
        "vllm_ascend.ops.fused_moe.fused_moe:zero_experts_compute"
    ](zero_experts_compute, ids, shares, **given)
    assert chosen.tolist() == [[0, 0, 0], [1, 0, 1]]
    assert (kept != 0).tolist() == [[True, False, False], [True, True, True]]
    result = FusedExpertsResult(routed_out=torch.ones(2, 2))
    result += rows
    wanted = torch.tensor([[0.4, 0.8], [0.0, 0.0]]) if added else torch.zeros(2, 2)
    torch.testing.assert_close(result.routed_out, 1 + wanted)


def made_experts(quant_config, **given):
    """A layer as vllm-ascend's constructor leaves it, and what that was told."""
    told = {}

    def original(layer, **arguments):
        told.update(arguments)
        layer.layer_name, layer.quant_config = "model.layers.0.mlp.experts", quant_config
        layer.e_score_correction_bias = torch.zeros(12)

    layer = SimpleNamespace()
    (function, *_) = experts.tell_the_layer.functions.values()
    function(original, layer, num_experts=8, **given)
    return layer, told


def test_a_layer_is_told_how_many_of_its_experts_have_no_matrices():
    layer, told = made_experts(None, zero_expert_type="identity")
    assert (layer.zero_expert_num, layer.zero_expert_type) == (4, "identity")
    assert told == {"num_experts": 8}, "vLLM's router would wait for what nobody gives it"
    other, _ = made_experts("W8A8")
    assert not hasattr(other, "zero_expert_num")


@pytest.mark.parametrize(("kind", "quant_config"), [("copy", None), ("identity", "W8A8")])
def test_what_nobody_judged_is_refused(kind, quant_config):
    with pytest.raises(NotImplementedError, match=r"mlp\.experts has experts without matrices"):
        made_experts(quant_config, zero_expert_type=kind)


def test_attentions_of_a_layer_are_counted():
    from vllm.model_executor.models.utils import extract_layer_index

    (function,) = attentions.count_attentions.functions.values()
    names = ("model.layers.3.self_attn.0", "model.layers.3.self_attn.1", "model.layers.3.self_attn")
    assert [function(extract_layer_index, name) for name in names] == [6, 7, 3]


def test_weights_of_the_drafting_layer_are_no_weights_of_the_target():
    function, *_ = weights.skip_the_drafting_layer.functions.values()
    names = ["mtp.norm.weight", "norm.weight", "layers.0.mlp.router.classifier.weight"]
    loaded = function(
        lambda _, given: {name for name, _ in given}, None, dict.fromkeys(names).items()
    )
    assert loaded == set(names[1:])


def test_the_drafting_layer_has_the_targets_output_matrix():
    """vllm-ascend compares ``shared_head.head`` of a layer, and puts the target's in its place."""
    loaded, layer = [], SimpleNamespace()
    parameter = SimpleNamespace(weight_loader=lambda _, value: loaded.append(value))
    model = SimpleNamespace(
        lm_head=SimpleNamespace(weight=parameter), model=SimpleNamespace(layers={"2": layer})
    )
    *_, function = weights.skip_the_drafting_layer.functions.values()
    given = {"lm_head.weight": "matrix", "model.mtp.norm.weight": "norm"}
    found = function(lambda _, others: {name for name, _ in others}, model, given.items())
    assert found == set(given)
    assert loaded == ["matrix"]
    assert layer.shared_head.head is model.lm_head
    layer.shared_head.head = "the target's"
    assert model.lm_head == "the target's"

# SPDX-License-Identifier: Apache-2.0
"""MiMo-V2: keys of 192 elements and values of 128, and sinks in layers with a window alone.

Weights are random, and more than a third of all missing keys change a token. Cells of the matrix
judge trained ones, with their heads.
"""

from types import SimpleNamespace

import pytest
import torch

from tests.support import engine, hosts
from tests.support.pairs import kv_groups, run_greedy
from tests.support.stock import each_runner
from tests.support.tiny_models import further_models, making, mimo_v2, sensitivity, training
from tests.support.tiny_models.recipes_of_families import FAMILIES

K = 3
SHARED, LENGTHS = 300, (310, 330, 350)
(RECIPE,) = (recipe for recipe in FAMILIES if recipe.model_type == mimo_v2.MODEL_TYPE)
"""Nothing is trained here."""
ALIKE = (
    *("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads"),
    *("num_key_value_heads", "head_dim", "v_head_dim", "intermediate_size"),
    *("moe_intermediate_size", "n_routed_experts", "num_experts_per_tok"),
    *("max_position_embeddings", "rms_norm_eps", "sliding_window", "attention_value_scale"),
)
"""Sizes that transformers' class takes as they are; it finds the kinds of the layers by itself."""


@pytest.fixture(scope="module")
def model():
    further_models.register()
    made = training.build_model(RECIPE).eval()
    torch.manual_seed(1)
    for parameter in made.parameters():
        if parameter.dim() >= 2:
            torch.nn.init.normal_(parameter, std=0.12)
    return made


@hosts.only_on("vllm_ascend_0_30", "transformers 5.5.4 has no class of the family")
def test_the_reference_computes_what_transformers_own_class_does(model):
    from transformers.models.mimo_v2_flash import modeling_mimo_v2_flash as own

    sizes = RECIPE.configuration()
    rotated = {"rope_type": "default", "partial_rotary_factor": sizes["partial_rotary_factor"]}
    config = own.MiMoV2FlashConfig(
        **{name: sizes[name] for name in ALIKE},
        rope_parameters={
            "full_attention": {**rotated, "rope_theta": sizes["rope_theta"]},
            "sliding_attention": {**rotated, "rope_theta": sizes["swa_rope_theta"]},
        },
    )
    config._attn_implementation = "eager"
    theirs = own.MiMoV2FlashForCausalLM(config).eval()
    theirs.load_state_dict(
        {
            name.replace("attention_sink_bias", "sinks"): value
            for name, value in model.state_dict().items()
        }
    )
    (tokens,) = prompts()[:1]
    with torch.inference_mode():
        wanted, found = (
            one(input_ids=torch.tensor([tokens]), use_cache=False).logits for one in (theirs, model)
        )
    torch.testing.assert_close(found, wanted, atol=1e-4, rtol=1e-4)


@pytest.mark.skipif(
    engine.compared_dtype() != "float32",
    reason="in 16 bits too many choices of random weights are near ties",
)
@each_runner
def test_it_drafts_for_itself_in_graphs_behind_a_shared_prefix(runner, model, tmp_path):
    """Steps are scheduled ahead. A model accepts whatever it drafted for itself."""
    share = sensitivity.removal_share(model, sensitivity.probe_contexts()[:8])
    assert share > sensitivity.REQUIRED_SHARE
    model.save_pretrained(tmp_path)
    making._name_architectures(RECIPE, tmp_path)
    case = engine.Scenario(
        str(tmp_path),
        str(tmp_path),
        num_speculative_tokens=K,
        prompts=prompts(),
        max_tokens=16,
        repeats=2,
        engine={
            "trust_remote_code": True,
            "async_scheduling": True,
            "enable_prefix_caching": True,
            "max_num_batched_tokens": 96,
        },
        graphs="FULL_DECODE_ONLY",
        capture_sizes=(K + 1, 4 * (K + 1)),
        environment=runner,
    )
    result = run_greedy(case)
    assert max(len(set(tokens)) for tokens in result.tokens) > case.max_tokens // 2
    assert result.num_drafts > 0
    assert result.accepted_per_position == [result.num_drafts] * K
    assert result.draft_replays > 0
    assert engine.replayed(result.log) or result.target_replays > 0
    assert min(result.cached_tokens[len(LENGTHS) :]) >= 256
    assert [len(kv_groups(result, role)) for role in ("target", "draft")] == [2, 2]


@hosts.only_on("vllm_ascend_0_23", "there launches are updated as those of one operator")
@pytest.mark.parametrize(
    ("of_model", "own", "is_draft", "is_int8", "taken"),
    [
        (True, None, False, False, "v2"),
        (False, None, False, False, "v1"),
        (True, torch.ones(4), False, False, "v1"),
        (True, None, True, False, "v1"),
        (True, None, False, True, "v1"),
    ],
)
def test_layers_beside_sinks_are_captured_by_their_operator(
    of_model, own, is_draft, is_int8, taken, monkeypatch
):
    """Not a draft's, each of whose launches is updated as what it is, nor those on 8 bits."""
    patch = hosts.module("patches.target_fixes")
    context = SimpleNamespace(sinks=of_model, is_draft_model=is_draft)
    monkeypatch.setattr(patch, "_EXTRA_CTX", context)
    capture, _ = patch.capture_as_if_with_sinks.functions.values()
    layer = SimpleNamespace(
        sinks=own, enable_c8_quant=is_int8, full_graph_fia_v2=lambda *given: ("v2", given)
    )
    given = ("query", "key", "value", "metadata", "output")
    found = capture(lambda layer, *given: ("v1", given), layer, *given)
    assert found == (taken, given)


@hosts.only_on("vllm_ascend_0_23", "there launches of a graph share the first one's workspace")
def test_each_launch_beside_sinks_asks_for_its_workspace():
    patch = hosts.module("patches.target_fixes")
    _, capture = patch.capture_as_if_with_sinks.functions.values()
    layer = SimpleNamespace(_use_max_workspace_for_fia_graph=False)
    assert capture(lambda layer: layer._use_max_workspace_for_fia_graph, layer) is True
    assert layer._use_max_workspace_for_fia_graph is False


def prompts():
    """Random tokens that begin alike."""
    ids = torch.randint(0, 256, (2, max(LENGTHS)), generator=torch.Generator().manual_seed(3))
    shared, others = ids.tolist()
    return [shared[:SHARED] + others[length - SHARED :][: length - SHARED] for length in LENGTHS]

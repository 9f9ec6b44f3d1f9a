# SPDX-License-Identifier: Apache-2.0
"""What our drafts on model runner V2 do not serve is refused before the start, with what to do."""

from types import SimpleNamespace

import pytest
from vllm.config import CUDAGraphMode

from mkv_ascend.adapters.vllm_ascend_0_30.v2.early_check import why_not_served


def text(**values):
    """A language model's configuration."""
    return SimpleNamespace(**values, to_dict=lambda: values)


def config(
    method="draft_model",
    *,
    dp=1,
    pp=1,
    cp=1,
    pcp=1,
    eplb=False,
    copies=0,
    shares=False,
    split=0,
    split_rows=False,
    ahead=True,
    counts=None,
    graphs=CUDAGraphMode.FULL_DECODE_ONLY,
    draft=None,
    target=None,
    **speculative,
):
    model = {
        "uses_mrope": False,
        "use_mla": False,
        "enforce_eager": False,
        "is_hybrid": False,
        "is_attention_free": False,
        "hf_config": SimpleNamespace(),
        "hf_text_config": text(model_type="llama"),
    }
    drafting = SimpleNamespace(**{**model, **(draft or {})})
    asked = {"parallel_drafting": False, "enable_adaptive_verification": False, **speculative}
    return SimpleNamespace(
        speculative_config=SimpleNamespace(
            method=method,
            draft_model_config=drafting,
            use_step3p5_mtp=lambda: getattr(drafting.hf_config, "model_type", "") == "step3p5_mtp",
            uses_draft_model=lambda: method == "draft_model",
            uses_dynamic_speculative_decoding=lambda: counts is not None,
            **asked,
        ),
        parallel_config=SimpleNamespace(
            data_parallel_size=dp,
            pipeline_parallel_size=pp,
            prefill_context_parallel_size=pcp,
            decode_context_parallel_size=cp,
            enable_eplb=eplb,
            eplb_config=SimpleNamespace(num_redundant_experts=copies),
            use_sequence_parallel_moe=shares,
        ),
        additional_config={
            "finegrained_tp_config": {"lmhead_tensor_parallel_size": split},
            "enable_dsa_cp": split_rows,
        },
        model_config=SimpleNamespace(**{**model, **(target or {})}),
        scheduler_config=SimpleNamespace(async_scheduling=ahead),
        compilation_config=SimpleNamespace(cudagraph_mode=graphs),
    )


COUNTS = [[1, 2, 3], [3, 8, 1]]
SHARES = SimpleNamespace(index_share_for_mtp_iteration=True)
ONE_LAYER, THREE_LAYERS = (
    SimpleNamespace(model_type="step3p5_mtp", num_nextn_predict_layers=count) for count in (1, 3)
)


GDN = {"is_hybrid": True, "hf_text_config": SimpleNamespace(linear_num_value_heads=4)}
MAMBA1, MAMBA2, SHORT_CONVOLUTIONS = (
    {"is_hybrid": True, "hf_text_config": SimpleNamespace(model_type=name)}
    for name in ("jamba", "granitemoehybrid", "lfm2")
)
SPARSE = {"use_mla": True, "hf_text_config": SimpleNamespace(model_type="x", index_topk=64)}
COMPRESSED = SimpleNamespace(compress_ratios=[0, 4, 128])


MLA, WINDOWS = (
    {"hf_text_config": text(model_type="x", **{name: 64})}
    for name in ("kv_lora_rank", "sliding_window")
)
INDEXED, WIDE_COMPRESSED = (
    {"hf_text_config": text(model_type="x", kv_lora_rank=64, index_topk=64, **more)}
    for more in ({}, {"compress_ratios": [0, 4]})
)

EXPERTS = {"hf_text_config": text(model_type="x", n_routed_experts=8)}
EXPERTS_OF_DEEPSEEK = {"hf_text_config": text(model_type="deepseek_v3", n_routed_experts=8)}


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"pp": 2, "ahead": False}, "pipeline stages without asynchronous scheduling"),
        (
            {"cp": 2, "method": "eagle", "draft": MLA},
            "decode context parallelism, but for drafts of dense layers",
        ),
        ({"cp": 2, "method": "eagle3", "draft": MLA}, "decode context parallelism"),
        ({"cp": 2, "method": "mtp", "draft": WINDOWS}, "decode context parallelism"),
        ({"cp": 2, "target": WINDOWS}, "decode context parallelism"),
        ({"cp": 2, "target": WIDE_COMPRESSED}, "decode context parallelism"),
        ({"cp": 2, "draft": INDEXED, "target": INDEXED}, "decode context parallelism"),
        ({"cp": 2, "method": "mtp", "draft": INDEXED, "target": MLA}, "decode context parallelism"),
        (
            {"cp": 2, "method": "mtp", "draft": INDEXED, "target": INDEXED, "split_rows": True},
            "decode context parallelism",
        ),
        ({"cp": 2, "method": "eagle3", "draft": INDEXED, "target": INDEXED}, "decode context"),
        ({"cp": 2, "target": {"is_hybrid": True}}, "decode context parallelism"),
        ({"shares": True}, "sequence parallelism"),
        ({"split": 2}, "lmhead_tensor_parallel_size"),
        ({"parallel_drafting": True}, "parallel drafting"),
        ({"method": "mtp", "draft": {"hf_config": SHARES}}, "choice of keys"),
        ({"method": "mtp", "draft": {"hf_config": THREE_LAYERS}}, "layers that take turns"),
        ({"counts": COUNTS, "target": MAMBA1}, "in full graphs of a target whose recurrent layers"),
    ],
)
def test_what_is_not_served_is_refused(given, named):
    reason = why_not_served(config(**given))
    assert named in reason
    assert "VLLM_USE_V2_MODEL_RUNNER=0" in reason


def test_a_draft_model_of_several_axes_is_refused_without_naming_v1_which_refuses_it_too():
    reason = why_not_served(config(draft={"uses_mrope": True}))
    assert "choose a text-only model of the family" in reason
    assert "VLLM_USE_V2_MODEL_RUNNER=0" not in reason


def test_adaptive_verification_is_refused_without_naming_v1_which_lacks_it():
    reason = why_not_served(config(enable_adaptive_verification=True))
    assert "leave enable_adaptive_verification out" in reason
    assert "VLLM_USE_V2_MODEL_RUNNER=0" not in reason


@pytest.mark.parametrize(
    "given",
    [{"copies": 2}, {"draft": EXPERTS}, {"method": "mtp", "draft": EXPERTS, "target": EXPERTS}],
)
def test_experts_that_move_are_refused_without_naming_v1_which_refuses_them_too(given):
    reason = why_not_served(config(eplb=True, **given))
    assert "leave --enable-eplb out" in reason
    assert "VLLM_USE_V2_MODEL_RUNNER=0" not in reason


def test_prefill_context_parallelism_is_refused_without_naming_v1_which_lacks_it():
    reason = why_not_served(config(pcp=2))
    assert "leave prefill_context_parallel_size out" in reason
    assert "VLLM_USE_V2_MODEL_RUNNER=0" not in reason


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"dp": 2},
        {"pp": 2},
        {"ahead": False},
        {"method": "mtp", "draft": {"hf_config": ONE_LAYER}},
        {"method": "dflash", "parallel_drafting": True},
        {"method": "mtp", "target": GDN},
        {"eplb": True},
        {"eplb": True, "method": "mtp", "draft": EXPERTS, "target": EXPERTS_OF_DEEPSEEK},
        {"target": {"is_hybrid": True}},
        {"target": {"hf_text_config": COMPRESSED}},
        {"method": "mtp", "target": {"hf_text_config": COMPRESSED}},
        {"draft": {"is_hybrid": True}},
        {"counts": COUNTS},
        {"method": "mtp", "counts": COUNTS, "target": {"use_mla": True}},
        {"method": "mtp", "counts": COUNTS, "target": SPARSE},
        {"counts": COUNTS, "target": GDN},
        {"counts": COUNTS, "target": MAMBA2},
        {"counts": COUNTS, "target": SHORT_CONVOLUTIONS},
        {"counts": COUNTS, "draft": {"is_hybrid": True}},
        {"counts": COUNTS, "target": {**MAMBA1, "enforce_eager": True}},
        {"counts": COUNTS, "target": MAMBA1, "graphs": CUDAGraphMode.PIECEWISE},
        {"counts": COUNTS, "target": {"use_mla": True, "hf_text_config": COMPRESSED}},
        {"cp": 2, "draft": MLA},
        {"cp": 2, "method": "mtp", "draft": MLA, "target": MLA},
        {"cp": 2, "method": "mtp"},
        {"cp": 2, "target": INDEXED},
        {"cp": 2, "target": INDEXED, "split_rows": True},
        {"cp": 2, "method": "mtp", "draft": INDEXED, "target": INDEXED},
        {"cp": 2, "method": "eagle3", "target": MLA},
        {"cp": 2, "draft": WINDOWS},
        {"cp": 2, "method": "dflash", "parallel_drafting": True},
        {"target": {"uses_mrope": True}},
        {"method": "eagle3", "target": {"uses_mrope": True}, "draft": {"uses_mrope": True}},
        {"method": "ngram", "pp": 2},  # not ours to refuse
    ],
)
def test_what_is_served_is_not_refused(given):
    assert why_not_served(config(**given)) is None


def test_the_drafts_own_configuration_is_not_judged_as_a_target():
    """vLLM checks it, too; its graphs are ours."""
    made = config(counts=COUNTS, draft={"is_hybrid": True})
    made.model_config = made.speculative_config.draft_model_config
    assert why_not_served(made) is None


def test_experts_of_a_drafts_own_configuration_are_those_that_were_judged():
    """vLLM has it judged, too, where it stands in the target's place."""
    asked = config(method="mtp", eplb=True, draft=EXPERTS)
    asked.model_config = asked.speculative_config.draft_model_config
    assert why_not_served(asked) is None

# SPDX-License-Identifier: Apache-2.0
"""Options for backends reach the layers they name, and impossible ones end the start."""

import pytest

from tests.support import engine
from tests.support.pairs import (
    backends,
    run_judged,
    scenario,
)

pytestmark = pytest.mark.host("0.23")

FIRST_DRAFT_LAYER = r"draft_model\.model\.layers\.0\..*"


def test_pattern_wins_over_role_and_vllm_option_is_the_default():
    case = scenario(
        "llama_target",
        "llama_draft",
        engine={"attention_backend": "FLASH_ATTN"},
        mkv_ascend={"attention": {"layers": {FIRST_DRAFT_LAYER: "flash_attention_3"}}},
    )
    result = run_judged(case)
    rows = {row["name"]: (row["backend"], row["chosen_by"]) for row in result.layers}
    for layer in (0, 1):
        chosen = rows[f"model.layers.{layer}.self_attn.attn"]
        assert chosen == ("flash_attention_3", "vllm option")
    draft = [rows[f"draft_model.model.layers.{layer}.self_attn.attn"] for layer in (0, 1)]
    assert draft == [("flash_attention_3", "pattern"), ("fused_infer_attention", "default")]


def test_vllms_option_for_the_draft_is_honoured():
    case = scenario("llama_target", "llama_draft", speculative={"attention_backend": "FLASH_ATTN"})
    result = engine.run(case)
    assert backends(result) == {
        "target": {"fused_infer_attention"},
        "draft": {"flash_attention_3"},
    }


@pytest.mark.parametrize(
    ("target", "options", "expected"),
    [
        (
            "deepseek_v2_target",
            {"target": "flash_attention_3"},
            ["every attention layer of the target", "mla", "Possible: mla"],
        ),
        (
            "llama_target",
            {"layers": {r"model\.layers\.9\..*": "flash_attention_3"}},
            ["matches no layer", "model.layers.0.self_attn.attn"],
        ),
        (
            "llama_target",
            {"drafts": "flash_attention_3"},
            ["mkv_ascend.attention.drafts", "did you mean 'draft'", "window_bound"],
        ),
        (
            "llama_target",
            {"target": "flash_attention_4"},
            ["mkv_ascend.attention.target", "'flash_attention_4'", "flash_attention_3"],
        ),
    ],
    ids=["kind", "pattern", "key", "name"],
)
def test_what_cannot_work_is_refused_with_what_would(target, options, expected):
    case = scenario(target, mkv_ascend={"attention": options}, prompts=[])
    with pytest.raises(engine.EngineFailedError) as failure:
        engine.run(case)
    for text in expected:
        assert text in str(failure.value)

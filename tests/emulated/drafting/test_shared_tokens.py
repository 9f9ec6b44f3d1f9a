# SPDX-License-Identifier: Apache-2.0
"""Drafts where ranks share tokens out beside experts (``enable_flashcomm1``), judged by loops.

Each rank then has the hidden states of a part of the tokens between layers. Every token, every
proposal and what is accepted are those of plain loops. With two draft tokens one request verifies
three tokens, which two ranks cannot share out without one of padding. Drafts of model runner V2 are
refused there.
"""

import pytest

from tests.support import engine, hosts
from tests.support.loop_judgement import assert_reference
from tests.support.marks import needs_float32

pytestmark = needs_float32

RIGHT_ON_0_30 = hosts.only_on(
    "vllm_ascend_0_30", "on 0.23.0 one of 315 draft tokens is not the head's own, not yet traced"
)
SHARED = {
    "tensor_parallel_size": 2,
    "enable_expert_parallel": True,
    "additional_config": {"enable_flashcomm1": True},
}
SAID = ("FlashComm1 is enabled", "enable_flashcomm1 is set from additional_config with value True")
"""In the log, by 0.30.0rc2 and by 0.23.0."""


def run_shared(target, draft, method, k, **fields) -> engine.Result:
    """As ``assert_reference``, on two ranks that share tokens out."""
    result = assert_reference(target, draft, method, k, engine=SHARED, **fields)
    assert any(said in result.log for said in SAID)
    return result


@pytest.mark.host("0.23", cases=["experts", "no-*"])
@pytest.mark.host("0.30", cases=["eagle3"])
@pytest.mark.parametrize(
    ("target", "draft", "method", "k"),
    [
        # Its rotary embeddings are given positions; those of MLA are not.
        pytest.param("glm4_moe_wide_mtp", "glm4_moe_wide_mtp", "mtp", 3, id="mtp"),
        pytest.param("qwen3_moe", "llama_draft", "draft_model", 2, id="no-experts"),
        # Rows of no request would reach those of requests through experts.
        pytest.param("qwen3_moe", "gpt_oss_draft", "draft_model", 3, id="experts"),
        pytest.param("qwen3_moe", "qwen3_moe_eagle3", "eagle3", 2, id="eagle3"),
        pytest.param("deepseek_v3_mtp", "deepseek_v3_mtp", "mtp", 3, id="mla", marks=RIGHT_ON_0_30),
    ],
)
def test_eagerly(target, draft, method, k):
    run_shared(target, draft, method, k)

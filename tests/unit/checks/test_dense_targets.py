# SPDX-License-Identifier: Apache-2.0
"""Options of experts: refused to targets without any, and to no other, however it says so."""

from __future__ import annotations

from typing import Any

import pytest

from mkv_ascend.checks.about_dense_targets import CHECKS
from mkv_ascend.checks.gathering import gather
from tests.support.host_checks import DEVICE, SHARED

SHARED_OUT = {"enable_expert_parallel": True, "tensor_parallel_size": 2}
COPIES: dict[str, Any] = {"data_parallel_size": 2}


def refused(model: str, **engine: Any) -> list[str]:
    facts = gather({"model": model, **engine}, DEVICE, SHARED)
    return [refusal.code for check in CHECKS for refusal in check(facts)]


@pytest.mark.parametrize(
    ("options", "codes"),
    [
        (SHARED_OUT, ["experts"]),
        ({**COPIES, "data_parallel_rank": 0}, ["experts"]),
        ({**COPIES, "data_parallel_external_lb": True}, ["experts"]),
        (COPIES, []),
        ({"data_parallel_rank": 0}, []),
    ],
)
def test_a_dense_target(models: dict[str, str], options: dict[str, Any], codes: list[str]) -> None:
    assert refused(models["Llama-3.1-8B"], **options) == codes
    assert refused(models["DeepSeek-V3"], **options) == []


@pytest.mark.parametrize(
    "said",
    [
        {"num_experts": [64, 64]},
        {"num_experts_per_tok": 2},
        {"moe_intermediate_size": 64},
        {"block_configs": [{"block_type": "moe", "n_routed_experts": 8}]},
        {"ffn_config": {"moe_num_experts": 16}},
    ],
)
def test_a_target_that_says_no_single_number(models: dict[str, str], said: dict[str, Any]) -> None:
    """vLLM's class may know it, or count it in parts; what it does not know it refuses itself."""
    options = {**SHARED_OUT, **COPIES, "data_parallel_rank": 0}
    assert refused(models["Llama-3.1-8B"], hf_overrides=said, **options) == []

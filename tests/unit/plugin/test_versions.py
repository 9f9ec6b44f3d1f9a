# SPDX-License-Identifier: Apache-2.0
"""Only the supported pair of vLLM and vllm-ascend is accepted."""

import pytest

from mkv_ascend.adapters.refusal import StartUpRefused
from mkv_ascend.plugin import versions


@pytest.mark.parametrize("vllm", ["0.23.0", "0.23.0+empty", "0.23.0+cu129"])
def test_supported_pair_is_accepted(vllm):
    assert versions.version_problem({"vllm": vllm, "vllm-ascend": "0.23.0"}) is None


@pytest.mark.parametrize(
    ("vllm", "vllm_ascend"),
    [
        ("0.23.1", "0.23.0"),
        ("0.23.0", "0.23.0rc1"),
        ("0.23.0", "0.23.0.post1"),
        ("0.32.0", "0.32.0"),
        (None, "0.23.0"),
    ],
)
def test_another_pair_is_refused_with_both_versions(vllm, vllm_ascend):
    problem = versions.version_problem({"vllm": vllm, "vllm-ascend": vllm_ascend})
    assert problem is not None
    assert f"vllm {vllm or 'missing'}" in problem
    assert f"vllm-ascend {vllm_ascend}" in problem
    assert "vllm 0.23.0 and vllm-ascend 0.23.0" in problem


def test_refusal_cannot_be_swallowed_as_an_exception():
    refusal = StartUpRefused("reason")
    assert not isinstance(refusal, Exception)
    assert refusal.code == "mkv_ascend: reason"

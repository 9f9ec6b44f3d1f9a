# SPDX-License-Identifier: Apache-2.0
"""Batches of fewer requests than their graph has: each verify step and proposal is replayed.

The graph's other rows are requests of padding, which verify K tokens as well. Sizes that are no
multiple of K + 1 are rounded up by vLLM.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from tests.support import engine, hosts, reference
from tests.support.loop_judgement import REFERENCE_OF, drafter_of
from tests.support.pairs import TIES, assert_greedy, prompts_of, scenario
from tests.support.recorded_proposals import VerifyStep
from tests.support.stock import each_runner
from tests.support.tiny_models import model_directory

GDN = ("qwen3_next_mtp", "qwen3_next_mtp", "mtp")


def sizes_of_verify_steps(steps: Sequence[VerifyStep], k: int) -> list[int]:
    """How many requests each step had in which all of them verified K tokens."""
    sizes = []
    while steps:
        size = steps[0].together
        if all(len(one.drafted) == k for one in steps[:size]):
            sizes.append(size)
        steps = steps[size:]
    return sizes


def replayed_steps(
    pair: tuple[str, str, str],
    k: int,
    requests: int,
    environment: Mapping[str, str],
    **fields: Any,
) -> list[int]:
    """Run so many requests at once: all tokens are right, and all verify steps were replayed.

    Returns:
        How many requests each of those had.
    """
    target, draft, method = pair
    name = REFERENCE_OF.get(target, target)
    limits = {"max_num_seqs": requests, "max_num_batched_tokens": 2048}
    case = scenario(
        target,
        draft,
        num_speculative_tokens=k,
        speculative={"method": method},
        prompts=prompts_of(name, range(12, 12 + requests)),
        max_tokens=20,
        environment=dict(environment),
        record_steps=True,
        **{"graphs": "FULL_DECODE_ONLY", **fields, "engine": limits | fields.get("engine", {})},
    )
    result = engine.run(case)
    assert_greedy(model_directory(name), case.prompts, result.tokens, case.max_tokens)
    drafter = drafter_of(model_directory(name), draft, method, k)
    near_tie, _ = TIES[engine.compared_dtype()]
    report = reference.judge(drafter.rows, result.proposals, near_tie)
    assert report.checked == k * len(result.proposals)
    assert not report.wrong, report.wrong[:5]
    assert 0 < result.num_accepted < result.num_draft_tokens
    sizes = sizes_of_verify_steps(result.steps, k)
    assert result.target_replays == result.draft_replays == len(sizes), sizes
    assert max(sizes) == requests
    return sizes


@pytest.mark.host("0.23", cases=["v1-*"])
@pytest.mark.nightly("other cases of it stay", cases=["v1-block", "v2-states"])
@pytest.mark.parametrize(
    ("pair", "k", "mode"),
    [
        pytest.param(GDN, 2, "FULL", id="states"),
        pytest.param(("llama_target", "llama_eagle3", "eagle3"), 3, "FULL", id="head"),
        pytest.param(("gpt_oss", "gpt_oss_dflash", "dflash"), 8, "FULL_DECODE_ONLY", id="block"),
    ],
)
@each_runner
def test_requests_of_padding(
    pair: tuple[str, str, str], k: int, mode: str, runner: Mapping[str, str]
) -> None:
    """Graphs of 1, 5 and 7 requests: up to three of a graph's are padding."""
    sizes = (k + 1, 4 * (k + 1) + 1, 7 * (k + 1))
    assert {2, 3, 4, 6} & {*replayed_steps(pair, k, 7, runner, graphs=mode, capture_sizes=sizes)}


@hosts.only_on("vllm_ascend_0_30", "vLLM 0.23.0 knows no method dspark")
def test_requests_of_padding_of_dspark() -> None:
    pair = ("gpt_oss", "gpt_oss_dspark", "dspark")
    assert {2, 3, 4, 6} & {*replayed_steps(pair, 4, 7, {}, capture_sizes=(5, 24, 35))}


@pytest.mark.nightly("more than 20 s")
@each_runner
def test_twelve_requests_that_verify_five_tokens(runner: Mapping[str, str]) -> None:
    """Sizes as a model of this kind is served with, for more requests than there are."""
    sizes = (1, *range(6, 193, 6))
    replayed_steps(GDN, 5, 12, runner, capture_sizes=sizes, engine={"max_num_seqs": 32})

# SPDX-License-Identifier: Apache-2.0
"""Sleep mode: an engine gives its memory away, and drafts as before when it wakes up."""

from __future__ import annotations

from typing import Any

import pytest

from tests.emulated.drafting import probes
from tests.support import engine, hosts, programs, reference
from tests.support.loop_judgement import REFERENCE_OF, drafter_of
from tests.support.pairs import TIES, assert_greedy, scenario, text_prompts
from tests.support.stock import each_runner
from tests.support.tiny_models import model_directory

IS_0_23 = hosts.NAME == "vllm_ascend_0_23"
LEVELS = [1, 2]
MAX_TOKENS = 24
CACHE_BYTES = 48 << 20
GRAPHS_SLEEP = (
    {"enable_sleep_mode_extra_cleanup": True}
    if IS_0_23
    else {"rl_config": {"enabled": True, "sleep_mode_extra_cleanup": True}}
)
"""Sleep drops graphs and communicators, too, and makes them anew at its end."""


def run_and_judge(
    target: str, draft: str, method: str, runner: dict[str, str], **options: Any
) -> dict[str, Any]:
    """What an engine did, which slept between rounds; all tokens of each round are right."""
    graphs = options.pop("graphs", None)
    case = scenario(
        target,
        draft,
        speculative={"method": method},
        engine={
            "enable_sleep_mode": True,
            "async_scheduling": False,
            "worker_extension_cls": "tests.support.reloading.Extension",
            "additional_config": {"weight_nz_mode": 0, **options},
            "kv_cache_memory_bytes": CACHE_BYTES,
        },
        graphs=graphs,
        capture_sizes=(4, 8, 16),
    )
    model, k = model_directory(REFERENCE_OF.get(target, target)), case.num_speculative_tokens
    texts = text_prompts(model)[2:6]
    asked = {"engine": case.engine_arguments(), "prompts": texts}
    result: dict[str, Any] = programs.answer_of(
        probes.sleep, {**asked, "max_tokens": MAX_TOKENS, "levels": LEVELS}, runner
    )
    drafter = drafter_of(model, draft, method, k)
    for awake in result["rounds"]:
        assert_greedy(model, texts, awake["tokens"], MAX_TOKENS)
        proposals = [reference.DraftProposal(**proposal) for proposal in awake["proposals"]]
        report = reference.judge(drafter.rows, proposals, TIES[engine.compared_dtype()][0])
        assert report.checked == k * len(proposals) > 5 * k
        assert not report.wrong, "\n".join(map(str, report.wrong[:5]))
    for slept in result["sleeps"]:
        assert slept["awake"]["bytes"] - slept["asleep"]["bytes"] > CACHE_BYTES
        assert slept["awake"]["captured"] == slept["again"]["captured"]
    return result


@pytest.mark.host("0.23", cases=["v1"])
@each_runner
def test_what_sleeps_wakes_up_as_it_was(runner):
    """Keys of a window and of all tokens, in graphs that are dropped and captured again."""
    result = run_and_judge(
        "llama_target",
        "gemma3_draft",
        "draft_model",
        runner,
        graphs="FULL_DECODE_ONLY",
        **GRAPHS_SLEEP,
    )
    assert all(awake["replays"] > 3 for awake in result["rounds"])
    for slept in result["sleeps"]:
        assert (slept["awake"]["captured"], slept["asleep"]["captured"]) == ([1, 2, 4], [])


# vllm-ascend 0.23.0 turns experts' weights around when it wakes up, for whoever loads them again.
HEAD = ("llama_target", "llama_eagle", "eagle") if IS_0_23 else ("deepseek_v3_mtp",) * 2 + ("mtp",)


@pytest.mark.nightly("other cases of it stay", cases=["v2"])
@each_runner
def test_a_head_keeps_what_is_its_own(runner):
    """It shares the target's embeddings, which are loaded again; MLA makes matrices of weights."""
    run_and_judge(*HEAD, runner)


@hosts.only_on("vllm_ascend_0_30", "vLLM 0.23.0 knows no method dspark")
def test_mask_tokens_are_not_lost_with_the_weights():
    """Graphs are captured again before the draft's weights are there: masks must be by then."""
    result = run_and_judge(
        "deepseek_v2_target",
        "deepseek_v2_one_key_dspark",
        "dspark",
        {},
        graphs="FULL_DECODE_ONLY",
        **GRAPHS_SLEEP,
    )
    assert all(awake["replays"] > 3 for awake in result["rounds"])

# SPDX-License-Identifier: Apache-2.0
"""Drafts under data parallelism on model runner V2, where a rank is idle for most of the time."""

import socket
from pathlib import Path

import pytest

from tests.support import engine, hosts, programs, reference
from tests.support.loop_judgement import REFERENCE_OF, drafter_of
from tests.support.pairs import TIES, assert_greedy, scenario, text_prompts
from tests.support.stock import RUNNER_V2
from tests.support.tiny_models import model_directory

hosts.skip_module_unless("vllm_ascend_0_30", "0.23.0 runs model runner V1 alone")

PROBE = Path(__file__).parents[1] / "drafting" / "data_parallel_probe.py"
# By round, prompts and new tokens of each rank: both are idle in turn, with batches of other sizes.
ROUNDS = (((4, 16), (1, 5)), ((1, 4), (2, 12)))


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def run_ranks(case, texts):
    """What each rank did in ``ROUNDS``, with its own of ``texts``."""
    return programs.answer_of(
        PROBE,
        {
            "engine": {**case.engine_arguments(), "async_scheduling": False},
            "port": free_port(),
            "ranks": [
                [
                    {"prompts": texts[rank:][: ranks[rank][0]], "max_tokens": ranks[rank][1]}
                    for ranks in ROUNDS
                ]
                for rank in range(2)
            ],
        },
        RUNNER_V2,
    )


def run_and_judge(target, draft, method, groups, graphs=None):
    """What each rank did; all tokens are the target's, all drafted ones the draft's own."""
    case = scenario(
        target,
        draft,
        speculative={"method": method},
        graphs=graphs,
        capture_sizes=(4, 8, 16) if graphs else (),
    )
    model, k = model_directory(REFERENCE_OF.get(target, target)), case.num_speculative_tokens
    texts = text_prompts(model)[3:]
    drafter = drafter_of(model, draft, method, k)
    near_tie, _ = TIES[engine.compared_dtype()]
    results = run_ranks(case, texts)
    for rank, result in enumerate(results):
        drafts = {row["kv_group"] for row in result["layers"] if row["role"] == "draft"}
        assert len(drafts) == groups
        for ranks, tokens in zip(ROUNDS, result["tokens"], strict=True):
            count, max_tokens = ranks[rank]
            assert_greedy(model, texts[rank:][:count], tokens, max_tokens)
        proposals = [reference.DraftProposal(**proposal) for proposal in result["proposals"]]
        report = reference.judge(drafter.rows, proposals, near_tie)
        assert report.checked == k * len(proposals) > 5 * k
        assert not report.wrong, "\n".join(map(str, report.wrong[:5]))
    accepted = sum(sum(result["accepted"]) for result in results)
    assert accepted > sum(result["drafts"] for result in results) / 4
    return results


PAIRS = [
    ("gpt_oss", "gpt_oss_draft", "draft_model", 2),  # Experts: each pass is one of all ranks.
    ("gpt_oss", "gpt_oss_eagle3", "eagle3", 1),  # None: passes of a rank are its own.
    ("deepseek_v3_mtp", "deepseek_v3_mtp", "mtp", 1),  # Experts behind hidden states.
    ("gpt_oss", "gpt_oss_dflash", "dflash", 2),
    ("qwen3_moe", "qwen3_next_draft", "draft_model", 1),  # States, and experts.
]


@pytest.mark.parametrize(("target", "draft", "method", "groups"), PAIRS)
def test_ranks_are_idle_in_turn(target, draft, method, groups):
    run_and_judge(target, draft, method, groups)


@pytest.mark.parametrize(("target", "draft", "method", "groups"), PAIRS[:2])
def test_ranks_are_idle_in_turn_beside_graphs(target, draft, method, groups):
    """Passes that are one of all ranks run eagerly."""
    results = run_and_judge(target, draft, method, groups, "FULL_DECODE_ONLY")
    for result in results:
        assert (result["replays"] > 2) == (method == "eagle3")

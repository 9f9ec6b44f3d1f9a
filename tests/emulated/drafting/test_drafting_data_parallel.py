# SPDX-License-Identifier: Apache-2.0
"""Drafts under data parallelism: a rank without requests runs the passes of the others along."""

import socket
from pathlib import Path

import pytest

from tests.support import programs
from tests.support.pairs import assert_greedy, scenario, text_prompts

PROBE = Path(__file__).with_name("data_parallel_probe.py")
# Prompts and new tokens of each rank: the second is idle for most of the time.
RANKS = ((4, 24), (1, 5))


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


SPLIT_HEAD = {"finegrained_tp_config": {"lmhead_tensor_parallel_size": 2}}
"""Each rank keeps half of the head's vocabulary, and has the other half from the other rank."""


@pytest.mark.parametrize("additional", [{}, SPLIT_HEAD], ids=["whole", "split_head"])
def test_a_rank_drafts_on_while_the_other_is_idle(additional):
    """Experts make the ranks run in step: each pass of a draft is one of all ranks."""
    case = scenario("qwen3_moe", "qwen3_moe", record_drafts=False)
    texts = text_prompts(case.model)
    asked = {
        "engine": {
            **case.engine_arguments(),
            "async_scheduling": False,
            "additional_config": additional,
        },
        "port": free_port(),
        "ranks": [
            [{"prompts": texts[:count], "max_tokens": max_tokens}] for count, max_tokens in RANKS
        ],
    }
    results = programs.answer_of(PROBE, asked)
    for result, (count, max_tokens) in zip(results, RANKS, strict=True):
        assert_greedy(case.model, texts[:count], result["tokens"][0], max_tokens)
        assert result["accepted"] == [result["drafts"]] * case.num_speculative_tokens

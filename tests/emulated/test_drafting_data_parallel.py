# SPDX-License-Identifier: Apache-2.0
"""Drafts under data parallelism: a rank without requests runs the passes of the others along."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

from tests.emulated.pairs import assert_greedy, scenario, text_prompts

PROBE = Path(__file__).with_name("data_parallel_probe.py")
# Prompts and new tokens of each rank: the second is idle for most of the time.
RANKS = ((4, 24), (1, 5))


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def start(case, rank, port, prompts, max_tokens):
    engine = {**case.engine_arguments(), "async_scheduling": False}
    request = {"engine": engine, "prompts": prompts, "max_tokens": max_tokens, "linger": 5}
    environment = {
        **os.environ,
        "VLLM_DP_RANK": str(rank),
        "VLLM_DP_RANK_LOCAL": str(rank),
        "VLLM_DP_SIZE": str(len(RANKS)),
        "VLLM_DP_MASTER_IP": "127.0.0.1",
        "VLLM_DP_MASTER_PORT": str(port),
    }
    return subprocess.Popen(
        [sys.executable, str(PROBE), json.dumps(request)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_rank_drafts_on_while_the_other_is_idle():
    """Experts make the ranks run in step: each pass of a draft is one of all ranks."""
    case = scenario("qwen3_moe", "qwen3_moe", record_drafts=False)
    texts, port = text_prompts(case.model), free_port()
    ranks = [
        start(case, rank, port, texts[:count], max_tokens)
        for rank, (count, max_tokens) in enumerate(RANKS)
    ]
    for process, (count, max_tokens) in zip(ranks, RANKS, strict=True):
        out, errors = process.communicate(timeout=300)
        assert process.returncode == 0, errors[-4000:]
        (line,) = [line for line in out.splitlines() if line.startswith('{"tokens"')]
        result = json.loads(line)
        assert_greedy(case.model, texts[:count], result["tokens"], max_tokens)
        assert result["accepted"] == [result["drafts"]] * case.num_speculative_tokens

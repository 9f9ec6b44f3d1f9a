# SPDX-License-Identifier: Apache-2.0
"""Ranks on two nodes of a Ray cluster, and a draft whose layers lie in two KV groups.

The nodes have addresses of their own on this machine's loopback, and an NPU each.
"""

import json
import os
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from reliability import client
from reliability.traffic import Request
from tests.support import engine, nodes
from tests.support.loop_judgement import assert_reference
from tests.support.pairs import kv_groups, text_prompts
from tests.support.server import complete, serve
from tests.support.stock import RUNNER_V2, each_runner
from tests.support.tiny_models import model_directory

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not nodes.IS_INSTALLED, reason=f"no Ray here: pip install ray=={nodes.RAY}"),
    pytest.mark.nightly("needs Ray, which set-up does not install"),
]
TARGET, DRAFT, K = "gemma3", "gemma3_draft", 3
TELLING_DRAFTS = {"worker_extension_cls": "tests.support.told_drafts.Extension"}
HANG_SECONDS = 30
"""Within which clients are told that a node is gone."""


@each_runner
@pytest.mark.parametrize("graphs", [None, "FULL_DECODE_ONLY"], ids=["eager", "graphs"])
def test_tokens_proposals_and_acceptance_are_the_references(graphs, runner):
    with nodes.two_nodes(runner) as cluster:
        result = assert_reference(
            TARGET,
            DRAFT,
            "draft_model",
            K,
            {**cluster.variables, **runner},
            graphs=graphs,
            engine={
                "tensor_parallel_size": 2,
                "distributed_executor_backend": "ray",
                **(TELLING_DRAFTS if runner == RUNNER_V2 else {}),
            },
        )
    assert kv_groups(result, "draft") == {0, 1}
    assert bool(result.draft_replays) == bool(graphs)
    # Ray names the address of a worker that is not on its driver's node.
    assert f"ip={nodes.ADDRESSES[1]}" in result.log


def test_a_node_that_is_killed_is_an_error_and_no_hang(tmp_path):
    target = str(model_directory(TARGET))
    prompts = text_prompts(target)[:4]
    speculation = {
        "method": "draft_model",
        "model": str(model_directory(DRAFT)),
        "num_speculative_tokens": K,
    }
    arguments = [target, "--dtype", engine.compared_dtype(), "--enforce-eager"]
    arguments += ["--max-model-len", "512", "--kv-cache-memory-bytes", str(64 << 20)]
    arguments += ["--tensor-parallel-size", "2", "--distributed-executor-backend", "ray"]
    arguments += ["--speculative-config", json.dumps(speculation)]
    with (
        nodes.two_nodes({}) as cluster,
        serve(arguments, tmp_path / "server.log", {**os.environ, **cluster.variables}) as server,
    ):
        assert len(complete(server, target, prompts[0], 8)) == 8
        asked = [
            Request(number, tuple(one), 300, stream=True) for number, one in enumerate(prompts)
        ]
        reached = client.Target(server.address, target, hang_seconds=HANG_SECONDS)
        with ThreadPoolExecutor(1) as sender:
            sent = sender.submit(client.send_all, reached, asked, len(asked))
            wait_for_tokens(server, 8 + 4 * len(asked))
            cluster.nodes[1].kill()
            answers = sent.result()
        assert {answer.outcome for answer in answers} == {client.FAILED}
        assert server.process.wait(HANG_SECONDS) is not None


def wait_for_tokens(server, count):
    end = time.monotonic() + HANG_SECONDS
    while server.metrics()["vllm:generation_tokens_total"] < count:
        assert time.monotonic() < end
        time.sleep(0.1)

# SPDX-License-Identifier: Apache-2.0
"""Two servers at once: one reads prompts, the other one decodes, and requests go through both.

As behind a proxy, a client asks the first server for one token, which sends the caches of target
and draft, and then the second one for all tokens. Several clients do so at a time, with
asynchronous scheduling, so that caches come in while others decode.
"""

import json
import os
from concurrent.futures import ThreadPoolExecutor

import pytest

from examples.demo import client as demo_client
from tests.support.kv_transfer import transfer
from tests.support.loop_judgement import NEW_TOKENS, decided_outputs, drafter_of
from tests.support.marks import needs_float32
from tests.support.server import complete, serve
from tests.support.stock import each_runner
from tests.support.tiny_models import model_directory

TARGET, DRAFT, K = "gemma3", "gemma3_draft", 3
CLIENTS = 4

pytestmark = [
    pytest.mark.slow,
    needs_float32,
    pytest.mark.nightly("two servers, whose engines in turn are judged by the same connector"),
]


def arguments(folder, role):
    speculation = {
        "method": "draft_model",
        "model": str(model_directory(DRAFT)),
        "num_speculative_tokens": K,
    }
    return [
        str(model_directory(TARGET)),
        *("--dtype", "float32", "--enforce-eager", "--max-model-len", "512"),
        *("--max-num-seqs", str(CLIENTS), "--max-num-batched-tokens", "64"),
        *("--kv-cache-memory-bytes", str(64 << 20)),
        *("--speculative-config", json.dumps(speculation)),
        *("--kv-transfer-config", json.dumps(transfer(folder, role))),
    ]


@each_runner
def test_requests_go_through_a_server_that_reads_and_one_that_decodes(tmp_path, runner):
    model = str(model_directory(TARGET))
    drafter = drafter_of(model_directory(TARGET), DRAFT, "draft_model", K)
    decided = decided_outputs(model_directory(TARGET), drafter, K)
    folder = tmp_path / "caches"
    folder.mkdir()
    own = {**os.environ, **runner}
    with (
        serve(arguments(folder, "kv_producer"), tmp_path / "reading.log", own) as reading,
        serve(arguments(folder, "kv_consumer"), tmp_path / "decoding.log", own) as decoding,
    ):

        def ask(prompt):
            complete(reading, model, prompt, 1)
            return complete(decoding, model, prompt, NEW_TOKENS)

        with ThreadPoolExecutor(CLIENTS) as clients:
            tokens = [*clients.map(ask, [prompt for prompt, _ in decided])]
        acceptance = demo_client.acceptance(decoding.metrics())
    outputs = [output for _, output in decided]
    assert tokens == [output.tokens for output in outputs]
    assert list(acceptance.accepted) == [
        sum(output.accepted_per_position[position] for output in outputs) for position in range(K)
    ]
    assert (tmp_path / "decoding.log").read_text().count("got the caches of") == len(decided)

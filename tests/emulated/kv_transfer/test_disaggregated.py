# SPDX-License-Identifier: Apache-2.0
"""One engine reads prompts, another one decodes: the draft's caches cross with the target's.

The judge is the one of a single engine: plain loops of Hugging Face's models say each token, each
proposal, and how many of it are accepted at each position. A draft whose caches did not cross would
propose otherwise behind the first token.
"""

import dataclasses
import json
import os
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from examples.demo import client as demo_client
from tests.support import decoded_latents, engine, hosts
from tests.support.eight_bit_pairs import (
    GRAPHS,
    AtOnce,
    assert_accepted_as_counted,
    assert_said,
    case_of,
    rows_of,
    said,
)
from tests.support.loop_judgement import (
    NEW_TOKENS,
    REFERENCE_OF,
    SMALL_ENGINE,
    accepted_by_loops,
    assert_reference,
    candidate_prompts,
    decided_outputs,
    drafter_of,
    loops_and_engine,
)
from tests.support.marks import needs_float32
from tests.support.pairs import (
    run_judged,
    scenario,
)
from tests.support.server import complete, serve
from tests.support.stock import each_runner
from tests.support.tiny_models import model_directory


def transfer(folder: Path, role: str) -> dict[str, Any]:
    """``kv_transfer_config`` of the connector of the tests, by files in ``folder``."""
    return {
        "kv_connector": "FileConnector",
        "kv_connector_module_path": "tests.emulated.kv_transfer.file_connector",
        "kv_role": role,
        "kv_connector_extra_config": {"shared_storage_path": str(folder)},
    }


# What nodes that decode are run with: requests that are preempted go back to be read again, and
# each request that comes begins as a verification of placeholders.
SENT_BACK = {"additional_config": {"recompute_scheduler_enable": True}}
# Drafts in several KV groups, on hidden states, and with the target's own kind of caches.
PAIRS = [
    pytest.param("gemma3", "gemma3_draft", "draft_model", {}, id="draft_model"),
    pytest.param("gpt_oss", "gpt_oss_eagle3", "eagle3", {}, id="eagle3"),
    pytest.param("deepseek_v3_mtp", "deepseek_v3_mtp", "mtp", SENT_BACK, id="mtp"),
]
K = 3


def read_prompts(target, draft, method, folder, runner, left_out=0):
    """The engine that reads prompts in chunks, drafts once behind each, and sends the caches.

    ``left_out``: tokens at the end of each prompt that it does not see.
    """
    directory = model_directory(REFERENCE_OF.get(target, target))
    prompts = [prompt[: len(prompt) - left_out] for prompt in candidate_prompts(directory)]
    case = scenario(
        target,
        draft,
        prompts=prompts,
        max_tokens=1,
        num_speculative_tokens=K,
        speculative={"method": method},
        engine={**SMALL_ENGINE, "kv_transfer_config": transfer(folder, "kv_producer")},
        environment=runner,
    )
    engine.run(case)
    assert len([*folder.iterdir()]) == len(prompts)


@pytest.mark.host("0.23", cases=["draft_model-v1"])
@pytest.mark.nightly("other cases of it stay", cases=["*-v2", "eagle3-*", "mtp-*"])
@each_runner
@pytest.mark.parametrize(("target", "draft", "method", "asked"), PAIRS)
def test_what_another_engine_read_is_decoded_and_drafted_behind(
    target, draft, method, asked, runner, tmp_path
):
    read_prompts(target, draft, method, tmp_path, runner)
    result = assert_reference(
        target,
        draft,
        method,
        K,
        runner,
        engine={"kv_transfer_config": transfer(tmp_path, "kv_consumer"), **asked},
    )
    assert len(re.findall("got the caches of", result.log)) == len(result.tokens)


@pytest.mark.host("0.23", cases=["qwen3_next-v1"])
@pytest.mark.nightly("other cases of it stay", cases=["*-v2"])
@each_runner
@pytest.mark.parametrize(
    "target",
    [
        "qwen3_next",
        pytest.param(
            "granite4",
            marks=hosts.only_on("vllm_ascend_0_30", "0.23.0 sends no states of this size"),
        ),
    ],
)
def test_states_behind_the_last_token_of_a_prompt(target, runner, tmp_path):
    """The other engine leaves it out; here it begins beside requests that verify drafts."""
    prompts = candidate_prompts(model_directory(target))
    case = scenario(
        target,
        "llama_draft",
        prompts=[prompt[:-1] for prompt in prompts],
        max_tokens=1,
        engine={"kv_transfer_config": transfer(tmp_path, "kv_producer")},
        environment=runner,
    )
    engine.run(case)
    assert len([*tmp_path.iterdir()]) == len(prompts)
    decoding = {"kv_transfer_config": transfer(tmp_path, "kv_consumer"), **SENT_BACK}
    case = dataclasses.replace(
        case, prompts=prompts, max_tokens=24, engine={"max_num_seqs": 3, **decoding}
    )
    result = run_judged(case)
    assert len(re.findall("got the caches of", result.log)) == len(prompts)


@pytest.mark.host("0.23", cases=["v1"])
@pytest.mark.nightly("other cases of it stay", cases=["v2"])
@each_runner
def test_states_behind_the_last_token_of_a_prompt_and_a_head_on_them(runner, tmp_path):
    """The head's keys cross as the states do, and both go on behind a token that is read here.

    The other engine's head took the token that its target said for the one that it does not see, so
    a request's first drafts may be others than the loops'.
    """
    name = "qwen3_next_mtp"
    read_prompts(name, name, "mtp", tmp_path, runner, left_out=1)
    decoding = {"kv_transfer_config": transfer(tmp_path, "kv_consumer"), **SENT_BACK}
    asked = {"max_num_seqs": 3, **decoding}
    outputs, result = loops_and_engine(name, name, "mtp", K, runner, engine=asked)
    assert result.tokens == [output.tokens for output in outputs]
    assert sum(result.accepted_per_position) > 0.9 * sum(accepted_by_loops(outputs))
    assert len(re.findall("got the caches of", result.log)) == len(result.tokens)


# Two servers at once: one reads prompts, the other one decodes, and requests go through both.
#
# As behind a proxy, a client asks the first server for one token, which sends the caches of target
# and draft, and then the second one for all tokens. Several clients do so at a time, with
# asynchronous scheduling, so that caches come in while others decode.

TARGET, DRAFT, K = "gemma3", "gemma3_draft", 3
CLIENTS = 4


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


@pytest.mark.slow
@needs_float32
@pytest.mark.nightly("two servers, whose engines in turn are judged by the same connector")
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


# One node reads prompts with plain latents, another one decodes with latents of 8 bits.

SOURCE = "openpangu_mtp"
NEAR_TIE = 0.15
"""As ``eight_bit_pairs.near_tie_of`` of models that round their inputs."""
# openPangu's checkpoints bring code for their configuration along.
ENGINE = {"block_size": 128, "trust_remote_code": True}
DECODES = {} if hosts.NAME == "vllm_ascend_0_23" else {"kv_cache_dtype": "int8"}
"""How a node that decodes is asked for latents of 8 bits, besides by its role."""


@pytest.mark.host("0.23", cases=["mtp-v1"])
@pytest.mark.nightly("other cases of it stay", cases=["draft_model-v2"])
@each_runner
@pytest.mark.parametrize("method", ["draft_model", "mtp"])
def test_drafts_of_a_node_that_decodes(method, runner, tmp_path):
    source = model_directory(SOURCE)
    target = decoded_latents.described(source, tmp_path / "target")
    draft = target if method == "mtp" else model_directory("llama_draft")
    folder = tmp_path / "caches"
    folder.mkdir()

    def case(role, **fields):
        asked = DECODES if role == "kv_consumer" else {}
        return case_of(
            target,
            draft,
            prompts=candidate_prompts(source),
            speculative={"method": method},
            engine={**ENGINE, **asked, "kv_transfer_config": transfer(folder, role)},
            environment=runner,
            **fields,
        )

    engine.run(case("kv_producer", max_tokens=1))
    decoding = case("kv_consumer", **GRAPHS)
    result = engine.run(decoding)
    assert len(re.findall("got the caches of", result.log)) == len(decoding.prompts)

    read = AtOnce(decoding)

    def target_rows(context, tokens):
        # The last token of a prompt is computed again where it is decoded from.
        return decoded_latents.rows_of(target, source, context, tokens, read.of(context) - 1)

    def head_rows(context, tokens):
        return decoded_latents.rows_of_head(target, source, context, tokens, read.of(context) - 1)

    assert_said(target_rows, said(decoding, result), NEAR_TIE)
    draft_rows = head_rows if method == "mtp" else rows_of(draft, read)
    assert_said(draft_rows, result.proposals, NEAR_TIE)
    # Of vLLM 0.30.0, a request whose prompt came begins with one token, and may be filled up.
    filled_up = 0 if hosts.NAME == "vllm_ascend_0_23" else len(decoding.prompts)
    assert_accepted_as_counted(decoding, result, filled_up)

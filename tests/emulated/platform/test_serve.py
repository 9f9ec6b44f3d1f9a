# SPDX-License-Identifier: Apache-2.0
"""`vllm serve`: a server process serves a target with a draft, and refuses in one line."""

import json
import os

import pytest

from examples.demo import client as demo_client
from tests.support import engine, programs, prompts, reference
from tests.support.pairs import assert_greedy
from tests.support.server import complete, serve
from tests.support.tiny_models import model_directory

pytestmark = pytest.mark.slow
MAX_TOKENS = 24
OPTIONS = ["--dtype", engine.compared_dtype(), "--enforce-eager", "--max-model-len", "512"]


def speculation(num_speculative_tokens=3):
    return json.dumps(
        {
            "method": "draft_model",
            "model": str(model_directory("llama_draft")),
            "num_speculative_tokens": num_speculative_tokens,
        }
    )


def chat_token_ids(target, question):
    """As a server has them. The template spells ``<bos>``, which our tokenizer makes five bytes."""
    return reference.load_tokenizer(target).apply_chat_template(
        [{"role": "user", "content": question}], add_generation_prompt=True, return_dict=False
    )


@pytest.mark.core
@pytest.mark.host("0.30")
def test_a_server_gives_the_targets_own_tokens_and_reports_acceptance(tmp_path):
    """With options of ours: 0.30.0rc2 reads them in an engine core before it loads plugins."""
    target = model_directory("deepseek_v2_target")
    ours = {"mkv_ascend": {"attention": {"window_bound": "vllm_ascend"}}}
    arguments = [str(target), *OPTIONS, "--gpu-memory-utilization", "0.5"]
    arguments += ["--speculative-config", speculation()]
    arguments += ["--additional-config", json.dumps(ours)]
    texts, question = prompts.demo_prompts(), "import what?"
    with serve(arguments, tmp_path / "server.log") as server:
        tokens = [complete(server, str(target), text, MAX_TOKENS) for text in texts]
        answer = demo_client.stream_answer(
            server.openai_address, str(target), question, MAX_TOKENS, None
        )
        rows = server.call_workers("attention_layers")[0]
        acceptance = demo_client.acceptance(server.metrics())
    token_ids = [reference.token_ids(target, text) for text in texts]
    token_ids.append(chat_token_ids(target, question))
    tokens.append(list(answer.tokens))
    assert_greedy(target, token_ids, tokens, MAX_TOKENS)
    assert {(row["role"], row["backend"]) for row in rows} == {
        ("target", "mla"),
        ("draft", "fused_infer_attention"),
    }
    assert acceptance.proposals > 0
    assert acceptance.mean_length > 1.8
    log = (tmp_path / "server.log").read_text()
    assert "Attention backends of the draft" in log
    assert "emulated NPU" in log or "EMULATED_NPU_DEVICES" not in os.environ


@pytest.mark.core(cases=["kind of the draft"])
@pytest.mark.host("0.23")
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"attention": {"targets": "mla"}}, "mkv_ascend.attention.targets"),
        ({"attention": {"draft": "mla"}}, "every attention layer of the draft"),
    ],
    ids=["unknown key", "kind of the draft"],
)
def test_the_command_refuses_in_its_last_line_without_a_traceback(options, expected):
    arguments = [str(model_directory("llama_target")), *OPTIONS]
    arguments += ["--speculative-config", speculation()]
    arguments += ["--additional-config", json.dumps({"mkv_ascend": options})]
    done = programs.run_program("vllm.entrypoints.cli.main", ["serve", *arguments])
    assert done.status == 1, done.errors
    assert "Traceback" not in done.output + done.errors
    refusal = done.errors[done.errors.index("mkv_ascend: ") :]
    assert expected in refusal

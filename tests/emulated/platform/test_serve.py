# SPDX-License-Identifier: Apache-2.0
"""`vllm serve`: a server process serves a target with a draft, and refuses in one line."""

import json
import os

import pytest

from mkv_ascend.commands import demo_client
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


def test_a_server_gives_the_targets_own_tokens_and_reports_acceptance(tmp_path):
    target = model_directory("deepseek_v2_target")
    arguments = [str(target), *OPTIONS, "--gpu-memory-utilization", "0.5"]
    arguments += ["--speculative-config", speculation()]
    texts = prompts.demo_prompts()
    with serve(arguments, tmp_path / "server.log") as server:
        tokens = [complete(server, str(target), text, MAX_TOKENS) for text in texts]
        answer = demo_client.stream_answer(
            server.openai_address, str(target), "import what?", MAX_TOKENS, None
        )
        rows = server.call_workers("attention_layers")[0]
        acceptance = demo_client.acceptance(server.metrics())
    # As the chat template has it; <bos> is put in front of each text.
    texts.append("user: import what?\nassistant: ")
    tokens.append(list(answer.tokens))
    token_ids = [reference.token_ids(target, text) for text in texts]
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


def test_an_engine_core_of_its_own_takes_our_options(tmp_path):
    """vllm-ascend 0.30.0rc2 makes its configuration there before vLLM loads general plugins."""
    target, text = model_directory("llama_target"), "import os"
    ours = {"mkv_ascend": {"attention": {"window_bound": "vllm_ascend"}}}
    arguments = [str(target), *OPTIONS, "--gpu-memory-utilization", "0.5"]
    arguments += ["--additional-config", json.dumps(ours)]
    with serve(arguments, tmp_path / "server.log") as server:
        tokens = complete(server, str(target), text, MAX_TOKENS)
    assert_greedy(target, [reference.token_ids(target, text)], [tokens], MAX_TOKENS)


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

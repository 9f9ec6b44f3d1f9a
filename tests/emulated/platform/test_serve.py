# SPDX-License-Identifier: Apache-2.0
"""`vllm serve`: a server process serves a target with a draft, and refuses in one line."""

import json
import os

import pytest

from examples.demo import client as demo_client
from reliability import served
from reliability.__main__ import main
from reliability.fault_cases import DELAY, DRAFT_WRITES, EXIT, MEMORY, Case
from reliability.fault_running import FaultyServer
from tests.support import engine, hosts, programs, prompts, reference
from tests.support.emulation import ON_EMULATOR
from tests.support.pairs import assert_greedy, scenario
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


# A slice of `python -m reliability load` and `faults`: real servers over HTTP.
#
# The engine core is forked from a server that has imported vLLM, so that each starts quickly.


@pytest.mark.skipif(not ON_EMULATOR, reason="forks the engine core, and has its device fail")
@pytest.mark.host("0.23")
def test_a_server_under_load_answers_everything_rightly_and_leaves_nothing(tmp_path, capsys):
    """Of a draft that reads two KV groups; requests are preempted, aborted, and begin alike.

    Two of three ask for an adapter of the target, and some are drawn at random.
    """
    options = ["--pair", "dense", "--requests", "40", "--round", "40", "--at-once", "16", "--fork"]
    options += ["--adapters", "2", "--json", "--folder", str(tmp_path)]
    assert main(["load", *options]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["problems"] == []
    assert found["checked"] == found["tokens"] > 1000
    assert found["requests"]["aborted"] > 0
    assert found["preemptions"] > 0
    assert found["accepted"] > 0.5 * found["drafted"]
    assert found["draws"]["count"] > 50


@pytest.mark.skipif(not ON_EMULATOR, reason="forks the engine core, and has its device fail")
@pytest.mark.host("0.23")
def test_a_stalled_device_is_waited_for_and_a_dead_engine_is_told(tmp_path):
    setting = served.Setting(
        served.PAIRS["dense"], variables={"VLLM_WORKER_MULTIPROC_METHOD": "fork"}
    )
    with FaultyServer(setting, tmp_path) as server:
        slow = server.judge(Case(0, DELAY, "engine", 0.2, seconds=2.0, launch=50))
        assert slow.reached
        assert slow.problems == []
        assert slow.requests == {"answered": 16}
        late = server.judge(Case(1, EXIT, "engine", 0.2, launch=10**6))
        assert not late.reached
        assert late.problems == []
        # Else it would reach the next requests.
        assert json.loads((tmp_path / "faults.json").read_text()) == []
        dead = server.judge(Case(2, EXIT, "engine", 0.2, launch=200), restart=False)
    assert dead.reached
    assert dead.problems == []
    assert dead.requests.get("failed", 0) > 0


# A rank that fails alone, and whose answer vLLM does not wait for: no client waits for it.
#
# The other rank waits for it in a collective. vLLM would wait for that one, for minutes.

TARGET_WRITES = "npu_kv_rmsnorm_rope_cache"
"""Operator that writes the caches of an MLA target, and not those of its dense draft."""


@pytest.mark.skipif(not ON_EMULATOR, reason="has one rank of a server find no memory")
@pytest.mark.host("0.23", cases=["draft-v1"])
@pytest.mark.nightly("a rank that fails in the draft's pass stays", cases=["target-*"])
@pytest.mark.parametrize("runner", hosts.ADAPTER.RUNNERS)
@pytest.mark.parametrize(
    ("operator", "options"),
    [
        (TARGET_WRITES, ()),
        # With asynchronous scheduling the rank has the next step already, and fails in it as well.
        (DRAFT_WRITES, ("--no-async-scheduling",)),
    ],
    ids=["target", "draft"],
)
def test_each_request_is_answered_or_fails_at_once(tmp_path, runner, operator, options):
    setting = served.Setting(
        served.PAIRS["mla"],
        runner=runner,
        ranks=2,
        options=options,
        variables={"VLLM_WORKER_MULTIPROC_METHOD": "fork"},
    )
    fails = Case(0, MEMORY, "worker", 0.2, launch=3, operator=operator, process="Worker_TP1")
    assert fails.is_deadly
    with FaultyServer(setting, tmp_path) as server:
        verdict = server.judge(fails, restart=False)
    assert verdict.reached
    assert verdict.problems == []
    assert verdict.requests.get("failed", 0) > 0
    log = "".join(path.read_text(errors="replace") for path in tmp_path.glob("*.log"))
    assert "rank 1 has failed, and ends" in log


@pytest.mark.skipif(not ON_EMULATOR, reason="has one rank of a server find no memory")
@pytest.mark.host("0.23")
def test_a_start_ends_where_one_rank_fails_in_it(tmp_path):
    """In the pass that measures memory: the other rank waits in a collective, and is read first."""
    faults = tmp_path / "faults.json"
    fault = {"operator": "npu_rms_norm", "launch": 2, "fault": "memory", "process": "Worker_TP1"}
    faults.write_text(json.dumps([fault]))
    case = scenario(
        "llama_target",
        engine={"tensor_parallel_size": 2},
        environment={"EMULATED_NPU_FAULTS": str(faults)},
    )
    # What the other rank says when the process of this one has ended.
    with pytest.raises(engine.EngineFailedError, match="Connection closed by peer"):
        engine.run(case)

# SPDX-License-Identifier: Apache-2.0
"""``vllm serve`` refuses mistakes in the process that the user started, before it starts others."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import hosts, programs
from tests.support.tiny_models import model_directory

PROBE = Path(__file__).with_name("front_check_probe.py")
HANG_SECONDS = 600
OF_THE_HOST = {
    "vLLM's own": (["--stream-interval", "0"], "greater than or equal to 1"),
    "vllm-ascend's own": (
        ["--additional-config", '{"enable_kv_nz": true}'],
        "only supported for mla",
    ),
}
"""Name -> words, and what of the message comes: no mistakes that mkv_ascend knows of."""


def mkv(**options):
    """``--additional-config`` with options of ours."""
    return "--additional-config", json.dumps({"mkv_ascend": options})


def spec(draft, tokens, **more):
    """``--speculative-config``."""
    given = {"model": draft, "num_speculative_tokens": tokens, **more}
    return "--speculative-config", json.dumps(given)


def mistakes():
    """Name -> words behind ``vllm serve``, code, and words of the message."""
    target, draft = str(model_directory("llama_target")), str(model_directory("llama_draft"))
    head = str(model_directory("llama_eagle3"))
    shares = {
        "shares of states in stages": (
            [
                *(target, *spec(head, 3, method="eagle3"), "-pp", "2", "-tp", "2"),
                *("--additional-config", '{"enable_flashcomm1": true}'),
            ],
            "pipeline",
            "a share of the tokens",
        )
    }
    return {
        "endless": (
            [target, *mkv(attention={"layers": {"a{99999999999999999999}": "FIA"}})],
            "options",
            "repeats too often",
        ),
        "fp8": ([target, "--kv-cache-dtype", "fp8"], "kv-cache-dtype", "fp8"),
        "FLASHINFER": ([target, "--attention-backend", "FLASHINFER"], "backend-name", "FLASH_ATTN"),
        "ranks": ([target, "-tp", "4", "-pp", "4"], "devices", "takes 16 devices"),
        "tokens": ([target, *spec(draft, 16)], "tokens-per-step", "1 to 15"),
        "blocks": ([target, *mkv(layout={"shared_pages": 1})], "options", "true or false"),
        # vllm-ascend 0.30.0rc2 shares the tokens of models with experts alone, and serves this.
        **(shares if hosts.NAME == "vllm_ascend_0_23" else {}),
    }


@pytest.fixture(scope="module")
def taken_port():
    """A port on which a socket listens as vLLM 0.23.0's does."""
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        server.bind(("127.0.0.1", 0))
        server.listen()
        yield server.getsockname()[1]


@pytest.fixture(scope="module")
def answers(taken_port):
    """What each command said, by name."""
    commands = [["serve", *words] for words, _, _ in mistakes().values()]
    target = mistakes()["fp8"][0][0]
    commands += [["serve", target, *words] for words, _ in OF_THE_HOST.values()]
    # Judged before the models: where the port is not refused, the number of tokens is.
    busy = ["--host", "127.0.0.1", "--port", str(taken_port)]
    commands.append(["serve", *mistakes()["tokens"][0], *busy])
    done = subprocess.run(
        [sys.executable, str(PROBE)],
        input=json.dumps(commands),
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
        check=False,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("probe: ")]
    assert len(lines) == len(commands), done.stderr[-3000:]
    found = [json.loads(line.removeprefix("probe: ")) for line in lines]
    return dict(zip([*mistakes(), *OF_THE_HOST, "port"], found, strict=True))


@pytest.mark.parametrize("name", sorted(mistakes()))
def test_a_mistake_ends_the_command_in_one_message(answers, name):
    _, code, says = mistakes()[name]
    answer = answers[name]
    assert answer["raised"] is None
    assert answer["status"] == 1
    # There vllm-ascend refuses it before any rule of ours is asked, by an assertion without words.
    is_silent = name == "fp8" and hosts.NAME == "vllm_ascend_0_30"
    assert ("configuration: --kv-cache-dtype: " if is_silent else f"[{code}]") in answer["said"]
    assert says in answer["said"]
    assert "Traceback" not in answer["said"]
    assert answer["children"] == []
    assert answer["shared"] == []


def test_check_says_the_same(answers):
    """In a process that stands for the command; of one mistake for each kind of message."""
    for name in ("tokens", "blocks"):
        words, _, _ = mistakes()[name]
        done = programs.run_program("mkv_ascend.cli", ["check", "--", "vllm", "serve", *words])
        assert done.status == 1
        assert done.errors.removeprefix("mkv-ascend check: ").strip() in answers[name]["said"]


@pytest.mark.parametrize("name", sorted(OF_THE_HOST))
def test_what_the_host_refuses_is_said_in_its_words_without_a_traceback(answers, name):
    answer = answers[name]
    assert answer["raised"] is None
    assert answer["status"] == 1
    assert "refuses this configuration: " in answer["said"]
    assert OF_THE_HOST[name][1] in answer["said"]
    assert "Traceback" not in answer["said"]


def test_a_port_that_is_listened_to_is_refused(answers, taken_port):
    """vLLM 0.30.0 does not share it either, and says so by an error of its own."""
    answer = answers["port"]
    if hosts.NAME == "vllm_ascend_0_30":
        assert "Address already in use" in str(answer["raised"])
        return
    assert answer["status"] == 1
    assert f"--port is {taken_port}, on which another server listens. Possible: " in answer["said"]
    assert "Traceback" not in answer["said"]


def test_the_command_itself_ends_so():
    """As a user starts it: a process of its own, whose last words are the refusal."""
    words, code, _ = mistakes()["tokens"]
    done = subprocess.run(
        [str(Path(sys.executable).with_name("vllm")), "serve", *words],
        env={**os.environ, "VLLM_LOGGING_LEVEL": "WARNING"},
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
        check=False,
    )
    assert done.returncode == 1
    assert f"[{code}]" in done.stderr.strip().splitlines()[-1]
    assert "Traceback" not in done.stderr + done.stdout
    assert "EngineCore" not in done.stderr + done.stdout

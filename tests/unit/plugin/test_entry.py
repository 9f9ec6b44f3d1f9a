# SPDX-License-Identifier: Apache-2.0
"""The entry module, in a process of its own: importing it claims the platform slot."""

import json
import os
import subprocess
import sys

import pytest

from mkv_ascend.plugin.versions import needs_no_device
from tests.support.programs import HANG_SECONDS

ASCEND_GENERAL = [
    "ascend_kv_connector",
    "ascend_model",
    "ascend_model_loader",
    "ascend_service_profiling",
]
# VLLM_PLUGINS -> the plugins that it leaves out.
DROPPED = {
    None: [],
    "mkv_ascend": ASCEND_GENERAL,
    "mkv_ascend,ascend_model": [name for name in ASCEND_GENERAL if name != "ascend_model"],
    ",".join(["mkv_ascend", *ASCEND_GENERAL]): [],
    "": ASCEND_GENERAL,
}
OF_TESTS = {"PYTHONPATH", "VLLM_PLUGINS"}
"""Variables that users do not have: where the emulated NPU is, and which plugins tests run with."""
AS_A_USERS = {name: value for name, value in os.environ.items() if name not in OF_TESTS}
AS_A_COMMAND = """
import sys
sys.argv[:] = sys.argv[1:]
from vllm.platforms import current_platform
from vllm.plugins import load_general_plugins
load_general_plugins()
print(type(current_platform).__name__)
"""
CODE = f"""
import json
from vllm_ascend import register
from mkv_ascend.plugin import entry
dropped = [entry.dropped_general_plugins(allowed) for allowed in {list(DROPPED)!r}]
print(json.dumps([dropped, register(), entry._failure_to_claim]))
"""


@pytest.fixture(scope="module")
def answers():
    done = subprocess.run(
        [sys.executable, "-c", CODE],
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_plugins_that_a_list_leaves_out(answers):
    assert dict(zip(DROPPED, answers[0], strict=True)) == DROPPED


def test_importing_claims_the_slot_from_whoever_holds_the_function_already(answers):
    assert answers[1:] == [None, None]


@pytest.mark.parametrize(
    ("words", "needs_none"),
    [
        ("/usr/bin/vllm bench serve --model m", True),
        ("/lib/vllm/entrypoints/cli/main.py chat", True),
        ("vllm --version", True),
        ("vllm bench throughput --model m", False),
        ("vllm serve m --chat-template bench", False),
        ("vllm", False),
        ("program.py bench serve", False),
        ("", False),
    ],
)
def test_commands_that_only_talk_to_a_server(words, needs_none):
    assert needs_no_device(words.split()) == needs_none


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [("vllm chat", 0, "CpuPlatform"), ("vllm serve", 1, "mkv_ascend: torch_npu is not installed")],
)
def test_a_client_runs_where_there_is_no_npu(words, status, said):
    """Each of vLLM's commands loads the platform, and what vllm-ascend adds imports torch_npu."""
    done = subprocess.run(
        [sys.executable, "-c", AS_A_COMMAND, *words.split()],
        env=AS_A_USERS,
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
        check=False,
    )
    assert done.returncode == status, done.stderr
    assert said in done.stdout + done.stderr

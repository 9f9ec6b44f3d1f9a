# SPDX-License-Identifier: Apache-2.0
"""The entry module, in a process of its own: importing it claims the platform slot."""

import json
import subprocess
import sys

import pytest

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

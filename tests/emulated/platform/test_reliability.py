# SPDX-License-Identifier: Apache-2.0
"""A slice of `python -m reliability load` and `faults`: real servers over HTTP.

The engine core is forked from a server that has imported vLLM, so that each starts quickly.
"""

import json

import pytest

from reliability import served
from reliability.__main__ import main
from reliability.fault_cases import DELAY, EXIT, Case
from reliability.fault_running import FaultyServer
from tests.support.emulation import ON_EMULATOR

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not ON_EMULATOR, reason="forks the engine core, and has its device fail"),
    pytest.mark.host("0.23"),
]


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

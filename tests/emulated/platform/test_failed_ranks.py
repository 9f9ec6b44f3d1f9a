# SPDX-License-Identifier: Apache-2.0
"""A rank that fails alone, and whose answer vLLM does not wait for: no client waits for it.

The other rank waits for it in a collective. vLLM would wait for that one, for minutes.
"""

import json

import pytest

from reliability import served
from reliability.fault_cases import DRAFT_WRITES, MEMORY, Case
from reliability.fault_running import FaultyServer
from tests.support import engine, hosts
from tests.support.emulation import ON_EMULATOR
from tests.support.pairs import scenario

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not ON_EMULATOR, reason="has one rank of a server find no memory"),
]

TARGET_WRITES = "npu_kv_rmsnorm_rope_cache"
"""Operator that writes the caches of an MLA target, and not those of its dense draft."""


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

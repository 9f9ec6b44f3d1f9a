# SPDX-License-Identifier: Apache-2.0
"""What the doctor calls a problem, with probes of our own."""

import argparse
import json
import subprocess

import pytest

from mkv_ascend.adapters.contract import PLATFORM
from mkv_ascend.commands import doctor
from tests.support import hosts

SERVED = tuple(hosts.ADAPTER.VERSIONS[name][0] for name in ("vllm", "vllm-ascend"))

FOUND = {
    "device": "emulated",
    "platform": PLATFORM,
    "torch_npu": "2.10.0",
    "ops": {"draft_plan": "native (built for the CPU)"},
    "emulator": {"native part": "built"},
    "error": None,
}


@pytest.fixture
def examine(monkeypatch):
    """Diagnoses an environment whose probe finds this, with these versions."""

    def run(versions=SERVED, dropped=(), **found):
        installed = dict(zip(("vllm", "vllm-ascend"), versions, strict=True))
        monkeypatch.setattr(doctor, "_probe", lambda: {**FOUND, **found})
        monkeypatch.setattr(doctor, "installed_version", installed.get)
        monkeypatch.setattr(doctor, "IMPORTED_LATE", ())
        monkeypatch.setattr(doctor, "dropped_general_plugins", lambda _: list(dropped))
        return doctor.diagnose()

    return run


def test_an_environment_that_works_has_no_problem(examine):
    diagnosis = examine()
    assert diagnosis["problems"] == []
    assert doctor.describe(diagnosis).endswith("nothing is wrong")
    assert "emulated NPU (not a real Ascend device)" in doctor.describe(diagnosis)
    assert "op draft_plan " in doctor.describe(diagnosis)


def test_a_wrong_pair_is_one_problem_with_both_versions(examine):
    (problem,) = examine(versions=("0.24.0", "0.23.0"), platform=None, error="refused")["problems"]
    assert "vllm 0.24.0" in problem
    assert "vllm-ascend 0.23.0" in problem


def test_stock_in_the_platform_slot_is_a_problem(examine):
    stock = "vllm_ascend.platform.NPUPlatform"
    (problem,) = examine(platform=stock)["problems"]
    assert stock in problem
    assert "VLLM_PLUGINS" in problem


def test_ops_that_nothing_serves_are_one_problem(examine):
    reason = "MKV_ASCEND_OPS is native, but the native kernels are not built"
    ops = dict.fromkeys(("draft_plan", "zero_blocks"), f"{doctor.NO_KERNELS}{reason}")
    assert examine(ops=ops)["problems"] == [f"Nothing serves draft_plan, zero_blocks: {reason}"]
    # Without vLLM there is one problem more, not one less.
    assert len(examine(versions=("0.24.0", "0.23.0"), ops=ops)["problems"]) == 2


def test_what_keeps_vllm_from_starting_is_the_problem(examine):
    (problem,) = examine(device="none", platform=None, error="mkv_ascend: no torch_npu")["problems"]
    assert problem == "vLLM cannot start: mkv_ascend: no torch_npu"


def test_torch_npu_without_a_device_is_a_problem(examine):
    (problem,) = examine(device="none")["problems"]
    assert "sees no NPU" in problem


def test_modules_that_only_a_worker_would_miss_are_a_problem(examine, monkeypatch):
    examine()
    monkeypatch.setattr(doctor, "IMPORTED_LATE", ("json", "no_such_module"))
    (problem,) = doctor.diagnose()["problems"]
    assert "pip install no_such_module" in problem


def test_a_misspelt_variable_hides_no_other_problem(examine, monkeypatch):
    monkeypatch.setenv("EMULATED_NPU_STRICTT", "1")
    misspelt, other = examine(platform="vllm_ascend.platform.NPUPlatform")["problems"]
    assert "EMULATED_NPU_STRICTT" in misspelt
    assert "NPUPlatform" in other


def test_plugins_that_a_variable_drops_are_a_problem(examine, monkeypatch):
    monkeypatch.setenv("VLLM_PLUGINS", "mkv_ascend")
    (problem,) = examine(dropped=["ascend_kv_connector"])["problems"]
    assert problem.endswith("VLLM_PLUGINS=mkv_ascend,ascend_kv_connector")


def test_ops_that_all_run_as_reference_are_a_problem_on_an_npu(examine):
    ops = {"draft_plan": "reference (no kernels are built)"}
    assert examine(device="emulated", ops=ops)["problems"] == []
    (problem,) = examine(device="npu", ops=ops)["problems"]
    assert problem.startswith("all custom ops run as reference")


@pytest.mark.parametrize(
    ("problem", "status"), [({}, 0), ({"error": "no device", "platform": None}, 1)]
)
def test_json_has_the_promised_keys_and_the_status_says_whether_all_is_well(
    examine, capsys, problem, status
):
    examine(**problem)
    assert doctor.run(argparse.Namespace(json=True)) == status
    found = json.loads(capsys.readouterr().out)
    assert {"device", "platform", "vllm", "vllm_ascend", "problems"} <= set(found)
    assert bool(found["problems"]) == bool(status)


def probed(monkeypatch, stdout="", stderr="", returncode=0):
    done = subprocess.CompletedProcess([], returncode, stdout, stderr)
    monkeypatch.setattr(subprocess, "run", lambda *arguments, **options: done)
    return doctor._probe()


def test_the_probes_answer_is_found_among_what_others_print(monkeypatch):
    answer = json.dumps(FOUND)
    assert probed(monkeypatch, f"a log line\n{answer}\ncounters at exit\n") == FOUND


def test_a_probe_that_ended_gives_its_last_line(monkeypatch):
    found = probed(monkeypatch, stderr="Traceback\nImportError: libhccl.so\n", returncode=1)
    assert found["error"] == "ImportError: libhccl.so"
    assert (found["device"], found["platform"]) == ("none", None)


def test_a_probe_that_hangs_is_a_finding(monkeypatch):
    def hang(*arguments, **options):
        raise subprocess.TimeoutExpired("probe", doctor.PROBE_SECONDS)

    monkeypatch.setattr(subprocess, "run", hang)
    assert "no answer" in doctor._probe()["error"]

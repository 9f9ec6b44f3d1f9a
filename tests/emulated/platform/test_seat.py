# SPDX-License-Identifier: Apache-2.0
"""The plugin claims the platform slot, says so when it cannot, and leaves nothing behind."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from mkv_ascend.adapters.contract import PLATFORM as MKV
from tests.support.emulation import ON_EMULATOR
from tests.support.programs import HANG_SECONDS

PROBE = Path(__file__).with_name("plugin_probe.py")
STOCK = "vllm_ascend.platform.NPUPlatform"
ASCEND_GENERAL = [
    "ascend_kv_connector",
    "ascend_model",
    "ascend_model_loader",
    "ascend_service_profiling",
]


def probe(vllm_plugins=None, **case):
    environment = {key: value for key, value in os.environ.items() if key != "VLLM_PLUGINS"}
    if vllm_plugins is not None:
        environment["VLLM_PLUGINS"] = vllm_plugins
    return subprocess.run(
        [sys.executable, str(PROBE), json.dumps(case)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
        check=False,
    )


def answer(done):
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.strip().splitlines()[-1])


@pytest.mark.host("0.23", cases=["reversed"])
@pytest.mark.parametrize("order", ["sorted", "reversed"])
def test_both_orders_of_discovery_give_our_platform_and_all_general_plugins(order):
    found = answer(probe(order=order))
    assert found["platform"] == MKV
    assert set(found["general"]) >= {*ASCEND_GENERAL, "mkv_ascend"}


@pytest.mark.host("0.23")
def test_leaving_us_out_of_vllm_plugins_gives_stock():
    found = answer(probe(vllm_plugins=",".join(["ascend", *ASCEND_GENERAL])))
    assert found["platform"] == STOCK
    assert set(found["general"]) == set(ASCEND_GENERAL)


@pytest.mark.host("0.23")
def test_uninstalled_leaves_stock():
    found = answer(probe(without=["mkv_ascend"]))
    assert found["platform"] == STOCK
    assert "mkv_ascend" not in found["general"]


def test_naming_only_us_works_and_warns_of_every_dropped_plugin():
    done = probe(vllm_plugins="mkv_ascend")
    found = answer(done)
    assert found["platform"] == MKV
    # Otherwise the dropped plugins apply them.
    assert found["global_patches"]
    warning = next(
        line for line in (done.stdout + done.stderr).splitlines() if "leaves out" in line
    )
    assert "WARNING" in warning
    for name in ASCEND_GENERAL:
        assert name in warning


@pytest.mark.parametrize(
    "versions", [{"vllm": "0.24.0"}, {"vllm-ascend": "0.23.1"}], ids=["vllm", "vllm-ascend"]
)
def test_another_version_ends_the_process_with_both_versions_and_no_traceback(versions):
    done = probe(versions=versions)
    assert done.returncode == 1
    (name, version), *_ = versions.items()
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("mkv_ascend: ")
    assert f"{name} {version}" in last
    assert "vllm 0.23.0 and vllm-ascend 0.23.0" in last
    assert "Traceback" not in done.stderr


def test_a_seat_that_cannot_be_taken_ends_the_process():
    done = probe(break_register=True)
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert "could not claim vLLM's platform slot" in last
    assert "Traceback" not in done.stderr


@pytest.mark.host("0.23")
def test_a_platform_that_vllm_dropped_ends_the_process_instead_of_running_stock():
    """vLLM logs that an entry point cannot be imported, and goes on with the others."""
    done = probe(break_platform=True)
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert f"the active platform is {STOCK}" in last
    assert "Traceback" not in last


def test_without_an_npu_the_process_ends_and_names_the_emulator():
    environment = {**os.environ, "PYTHONPATH": "", "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    if not ON_EMULATOR:
        pytest.skip("torch_npu is really installed here, so it cannot be taken away")
    done = subprocess.run(
        [sys.executable, "-c", "from vllm.platforms import current_platform"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
        check=False,
    )
    assert done.returncode == 1
    assert "mkv-ascend emulate" in done.stderr.strip().splitlines()[-1]
    assert "Traceback" not in done.stderr

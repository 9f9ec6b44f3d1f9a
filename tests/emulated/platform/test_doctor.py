# SPDX-License-Identifier: Apache-2.0
"""The doctor sees the device and the platform slot as vLLM does."""

import json
import os
import subprocess
import sys

import pytest

from mkv_ascend import ops
from mkv_ascend.adapters.contract import PLATFORM as MKV
from tests.support.emulation import ON_EMULATOR
from tests.support.programs import HANG_SECONDS

pytestmark = pytest.mark.host("0.23")


def doctor(*arguments, **variables):
    return subprocess.run(
        [sys.executable, "-m", "mkv_ascend", "doctor", *arguments],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
        check=False,
    )


def test_nothing_is_wrong_here():
    done = doctor("--json")
    found = json.loads(done.stdout)
    assert done.returncode == 0, found
    assert found["problems"] == []
    assert found["device"] in ("emulated", "npu")
    assert found["platform"] == MKV
    assert (found["vllm"].split("+")[0], found["vllm_ascend"]) == ("0.23.0", "0.23.0")
    assert set(found["ops"]) == set(ops.NAMES)
    if found["device"] == "emulated":
        assert set(found["ops"].values()) == {"native (built for the CPU)"}


def test_a_list_of_plugins_without_us_and_a_misspelt_variable_are_problems():
    done = doctor("--json", VLLM_PLUGINS="ascend", EMULATED_NPU_STRICTT="1")
    found = json.loads(done.stdout)
    assert done.returncode == 1
    assert found["platform"] == "vllm_ascend.platform.NPUPlatform"
    plugins, variable = sorted(found["problems"], key=lambda problem: "STRICTT" in problem)
    assert "VLLM_PLUGINS" in plugins
    assert "did you mean EMULATED_NPU_STRICT?" in variable


def test_without_a_device_the_text_names_the_emulator():
    if not ON_EMULATOR:
        pytest.skip("torch_npu is really installed here, so it cannot be taken away")
    done = doctor(PYTHONPATH="")
    assert done.returncode == 1
    assert "mkv-ascend emulate" in done.stdout
    assert "Traceback" not in done.stdout

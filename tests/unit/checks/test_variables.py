# SPDX-License-Identifier: Apache-2.0
"""What a variable of vllm-ascend says is judged as if ``--additional-config`` had said it."""

import json

import pytest

from mkv_ascend.adapters import installed
from mkv_ascend.checks.variables import FLASHCOMM1, OPTION, with_variables
from mkv_ascend.cli import main

OF_0_30, OF_0_23 = (adapter.RULES for adapter in installed.adapters())


@pytest.mark.parametrize(
    ("rules", "text", "given", "expected"),
    [
        (OF_0_23, "1", None, True),
        (OF_0_23, "2", {}, True),
        (OF_0_23, "0", {}, None),
        # vllm-ascend ends with words of its own.
        (OF_0_23, "true", {}, None),
        (OF_0_23, "1", {OPTION: False}, False),
        (OF_0_30, "1", {"other": 1}, True),
        (OF_0_30, " True ", {}, True),
        (OF_0_30, "2", {}, None),
        (OF_0_30, "1", {OPTION: False}, True),
        (OF_0_30, "", {OPTION: True}, True),
        (OF_0_30, "1", "no mapping", None),
    ],
)
def test_each_host_reads_it_in_its_way(rules, text, given, expected):
    engine = {"model": "m", "additional_config": given}
    found = with_variables(engine, {FLASHCOMM1: text}, rules)["additional_config"]
    assert (found.get(OPTION) if isinstance(found, dict) else None) is expected
    if isinstance(given, dict):
        assert found == {**given, **({} if expected is None else {OPTION: expected})}


def test_rules_are_the_sources():
    """The option stands where vllm-ascend looks it up before the variable."""
    from importlib.util import find_spec
    from pathlib import Path

    found = find_spec("vllm_ascend")
    assert found is not None
    assert found.submodule_search_locations
    source = Path(found.submodule_search_locations[0], "ascend_config.py").read_text()
    assert (f') or os.getenv("{FLASHCOMM1}"' in source) != installed.rules().options_beat_variables


def test_check_reads_the_variable(models, monkeypatch, capsys):
    speculation = json.dumps({"model": models["moe-draft"], "num_speculative_tokens": 3})
    command = ["check", "--devices", "2", "--memory", "64GiB", "--", "vllm", "serve"]
    command += [models["Llama-3.1-8B"], "-tp", "2", "--speculative-config", speculation]
    assert main(command) == 0, capsys.readouterr()
    monkeypatch.setenv(FLASHCOMM1, "1")
    assert main(command) == 1
    assert OPTION in capsys.readouterr().err

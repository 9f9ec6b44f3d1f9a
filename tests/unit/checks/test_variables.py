# SPDX-License-Identifier: Apache-2.0
"""What a variable of vllm-ascend says is judged as if ``--additional-config`` had said it."""

import json

import pytest

from mkv_ascend.adapters import installed
from mkv_ascend.checks.graph_modes import graph_mode
from mkv_ascend.checks.variables import FLASHCOMM1, NZ_MODE, OPTION, UNCOMPILED, with_variables
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


@pytest.mark.parametrize(
    ("rules", "text", "given", "expected"),
    [
        (OF_0_23, "0", None, 0),
        (OF_0_23, "2", {}, 2),
        (OF_0_23, "0", {NZ_MODE: 1}, 1),
        # vllm-ascend ends with words of its own.
        (OF_0_23, "no", {}, None),
        (OF_0_30, "0", {}, None),
    ],
)
def test_one_host_reads_the_format_of_weights(rules, text, given, expected):
    engine = {"model": "m", "additional_config": given}
    found = with_variables(engine, {"VLLM_ASCEND_ENABLE_NZ": text}, rules)["additional_config"]
    assert found.get(NZ_MODE) == expected


def test_rules_are_the_sources():
    """The option stands where vllm-ascend looks it up before the variable."""
    from importlib.util import find_spec
    from pathlib import Path

    found = find_spec("vllm_ascend")
    assert found is not None
    assert found.submodule_search_locations
    source = Path(found.submodule_search_locations[0], "ascend_config.py").read_text()
    rules = installed.rules()
    assert (f') or os.getenv("{FLASHCOMM1}"' in source) != rules.options_beat_variables
    assert ('"VLLM_ASCEND_ENABLE_NZ"' in source) is (rules.nz_variable == "VLLM_ASCEND_ENABLE_NZ")
    assert ("ascend_config.weight_nz_mode = 0" in source) is rules.has_rl_config


def test_check_reads_the_variable(models, monkeypatch, capsys):
    speculation = json.dumps({"model": models["moe-draft"], "num_speculative_tokens": 3})
    command = ["check", "--devices", "2", "--memory", "64GiB", "--", "vllm", "serve"]
    command += [models["Llama-3.1-8B"], "-tp", "2", "--speculative-config", speculation]
    assert main(command) == 0, capsys.readouterr()
    monkeypatch.setenv(FLASHCOMM1, "1")
    assert main(command) == 1
    assert OPTION in capsys.readouterr().err


def test_a_model_that_torch_does_not_compile_has_no_graphs():
    """vLLM takes the variable for mode 0, whatever mode was asked for."""
    asked = {"model": "m", "compilation_config": {"mode": 3, "cudagraph_mode": "PIECEWISE"}}
    found = with_variables(asked, {UNCOMPILED: "1"}, OF_0_23)
    assert graph_mode(asked, OF_0_23) == "PIECEWISE"
    assert graph_mode(found, OF_0_23) == "NONE"
    assert with_variables(asked, {UNCOMPILED: "0"}, OF_0_23) == asked

# SPDX-License-Identifier: Apache-2.0
"""A process that leaves one record out does without what stands for it, and has all others."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import without_patch

PROGRAM = """
import importlib, json, sys, types

host = types.ModuleType("host")
exec("def greet(name):\\n    return 'hello ' + name\\nlimit = 1\\n", vars(host))
exec("class Base:\\n    def run(self):\\n        return 'theirs'\\n", vars(host))
host.Base.__module__ = "host"
sys.modules["host"] = host

from mkv_ascend.adapters.common.attention.derived import derive
from mkv_ascend.adapters.patching import override, patch, record

def made(target):
    return dict(name=target, target="host:" + target, why="", until="", test="")

@patch(**made("greet"))
def ours(original, name):
    return original(name) + "!"

RUN, LIMIT = record(**made("Base.run")), record(**made("limit"))

class Own(host.Base):
    @override(RUN)
    def run(self):
        return "ours, not " + super().run()

ours.apply()
with LIMIT.replaced(2):
    limit = host.limit
derived = derive(host.Base, "", {"run": lambda self: "derived"}, RUN)
colours = importlib.import_module("colours")
print(json.dumps([host.greet("you"), limit, Own().run(), derived().run(), colours.red()]))
"""
WHOLE = ["hello you!", 2, "ours, not theirs", "derived", "red"]
LEFT_OUT = {
    "": WHOLE,
    "greet": ["hello you", *WHOLE[1:]],
    "limit": [WHOLE[0], 1, *WHOLE[2:]],
    "Base.run": [*WHOLE[:2], "theirs", "theirs", "red"],
    "Base.run::Own": [*WHOLE[:2], "theirs", "derived", "red"],
    "colour": [*WHOLE[:4], None],
}


@pytest.mark.parametrize("name", LEFT_OUT)
def test_one_record_is_left_out_and_noted(name: str, tmp_path: Path) -> None:
    (tmp_path / "colours.py").write_text("def red():\n    return 'red'\n")
    (tmp_path / "stubs.json").write_text(json.dumps({"colour": ["colours:red"]}))
    (tmp_path / "name").write_text(name)
    path = os.pathsep.join([str(without_patch.SITE), str(tmp_path), str(without_patch.ROOT)])
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, "PYTHONPATH": path, without_patch.FOLDER: str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(done.stdout) == LEFT_OUT[name]
    assert (tmp_path / "seen").exists() == bool(name)


def test_every_stub_is_a_function_of_a_record() -> None:
    known = {
        placed.record.name
        for placed in without_patch.foreign_names.records(without_patch.foreign_names.all_sources())
    }
    assert set(without_patch.STUBS) <= known
    for places in without_patch.STUBS.values():
        for place in places:
            module, _, qualified = place.partition(":")
            text = (without_patch.ROOT / f"{module.replace('.', '/')}.py").read_text()
            assert f"def {qualified.rpartition('.')[2]}(" in text, place


def test_a_name_that_no_record_has_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        without_patch.main(["no such record"])
    assert "no record of this host is named 'no such record'" in capsys.readouterr().err

# SPDX-License-Identifier: Apache-2.0
"""A process that leaves one record out does without what stands for it, and has all others."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import foreign_names
import without_patch
from without_patch_stubs import STUBS

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
    return dict(name=target, target="host:" + target)

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
    "greet::nothing|greet": ["hello you", *WHOLE[1:]],
    "colour": [*WHOLE[:4], None],
    "tint::of the wall": [*WHOLE[:4], "more red"],
}

STUBS_OF_THIS = {
    "colour": {"colours:red": "of the door"},
    "tint": {"colours:red=lambda: more + original()": "of the wall"},
}


@pytest.mark.parametrize("name", LEFT_OUT)
def test_one_record_is_left_out_and_noted(name: str, tmp_path: Path) -> None:
    (tmp_path / "colours.py").write_text("more = 'more '\ndef red():\n    return 'red'\n")
    (tmp_path / "stubs.json").write_text(json.dumps(STUBS_OF_THIS))
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
    assert (tmp_path / "before").exists() == (not name)


def test_every_stub_is_a_function_and_has_targets_of_its_record() -> None:
    for name, stubs in STUBS.items():
        for stub, targets in stubs.items():
            module, _, qualified = stub.partition("=")[0].partition(":")
            text = (without_patch.ROOT / f"{module.replace('.', '/')}.py").read_text()
            name_of_stub = qualified.rpartition(".")[2]
            assert re.search(rf"(def |import .*\b){name_of_stub}\b", text), stub
            assert set(targets) <= {
                target
                for placed in foreign_names.records(foreign_names.all_sources())
                if placed.record.name == name
                for target in placed.record.targets
            }, stub


def test_a_name_that_no_record_has_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        without_patch.main(["no such record"])
    assert "no record of this host is named 'no such record'" in capsys.readouterr().err

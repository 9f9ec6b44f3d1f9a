# SPDX-License-Identifier: Apache-2.0
"""Faults that a file asks for: at the launch that it names, in the way that it names, and once."""

import json
import os
import signal
import subprocess
import sys

import pytest

from emulated_npu import faults

BEGIN = """
import json, os, sys, time
import torch, torch_npu

def ask(operator, launch, fault, **more):
    path = os.environ["EMULATED_NPU_FAULTS"]
    with open(path + ".new", "w") as file:
        json.dump([{"operator": operator, "launch": launch, "fault": fault, **more}], file)
    os.replace(path + ".new", path)

x = torch.arange(6.0, device="npu").reshape(2, 3)
weight = torch.ones(3, device="npu")

def norm():
    return torch_npu.npu_rms_norm(x, weight)[0]

def is_nan(tensor):
    return bool(tensor.cpu().isnan().any())
"""


def run(tmp_path, program):
    """A process of its own: a device that has failed stays so."""
    environment = {**os.environ, "EMULATED_NPU_FAULTS": str(tmp_path / "faults.json")}
    return subprocess.run(
        [sys.executable, "-c", BEGIN + program],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def answer(tmp_path, program):
    """What the program prints last, as JSON."""
    done = run(tmp_path, program)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_nan_comes_at_the_launch_that_was_named_and_once(tmp_path):
    program = """
found = [is_nan(norm())]
ask("npu_rms_norm", 2, "nan")
x + x  # another operator is not counted
found += [is_nan(norm()) for _ in range(3)]
graph = torch.npu.NPUGraph()
with torch.npu.graph(graph):
    y = norm()
ask("npu_rms_norm", 2, "nan")
for _ in range(3):
    graph.replay()
    found.append(is_nan(y))
print(json.dumps(found))
"""
    assert answer(tmp_path, program) == [False, False, True, False, False, True, False]


def test_one_bit_is_flipped_at_the_launch_that_was_named_and_once(tmp_path):
    program = """
right = norm().cpu()
ask("npu_rms_norm", 2, "flip")
found = [norm().cpu() for _ in range(3)]
differ = [(one != right).nonzero().tolist() for one in found]
bits = int(found[1].view(torch.int32)[0, 0]) ^ int(right.view(torch.int32)[0, 0])
print(json.dumps([differ, bits]))
"""
    assert answer(tmp_path, program) == [[[], [[0, 0]], []], 1 << 30]


def test_what_is_written_is_lost_at_so_many_launches_in_a_row(tmp_path):
    program = """
rows = torch.ones(1, 1, 1, device="npu")

slots = torch.arange(8, dtype=torch.int32, device="npu")

def write(slot):
    named = {"key_cache": keys, "value_cache": values}  # as vllm-ascend has them
    torch_npu._npu_reshape_and_cache(rows, rows, **named, slot_indices=slots[slot : slot + 1])

keys, values = (torch.zeros(1, 8, 1, 1, device="npu") for _ in range(2))
graph = torch.npu.NPUGraph()
with torch.npu.graph(graph):
    write(6)
ask("_npu_reshape_and_cache", 2, "lost", times=3)
for slot in range(5):
    write(slot)
found = [held.flatten().tolist() for held in (keys, values)]
ask("_npu_reshape_and_cache", 1, "lost")
graph.replay()
lost = keys[0, 6].item()
graph.replay()
print(json.dumps([found, lost, keys[0, 6].item()]))
"""
    written = [1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0]
    assert answer(tmp_path, program) == [[written, written], 0.0, 1.0]


def test_one_allocation_finds_no_memory(tmp_path):
    program = """
ask("aten::mul", 2, "memory")
told = []
for _ in range(4):
    try:
        told.append((x * 2).sum().item())
    except torch.OutOfMemoryError as error:
        told.append("NPU out of memory" in str(error))
print(json.dumps(told))
"""
    assert answer(tmp_path, program) == [30.0, True, 30.0, 30.0]


def test_an_error_is_told_to_whoever_waits_then_and_later(tmp_path):
    program = """
told = []

def note(what, function):
    try:
        function()
    except RuntimeError as error:
        told.append([what, "507015" in str(error) and "aten::mul" in str(error)])

graph = torch.npu.NPUGraph()
with torch.npu.graph(graph):
    y = x * 3
ask("aten::mul", 2, "error")
note("an earlier launch", (x * 2).cpu)
graph.replay()
z = x + 1
event = torch.npu.Event()
event.record()
host = torch.empty(2, 3).pin_memory()
note("a copy that nobody waits for", lambda: host.copy_(z, non_blocking=True))
note("read", z.cpu)
note("item", z.sum().item)
note("event", event.synchronize)
note("stream", torch.npu.current_stream().synchronize)
note("device", torch.npu.synchronize)
print(json.dumps(told))
"""
    places = ("read", "item", "event", "stream", "device")
    assert answer(tmp_path, program) == [[place, True] for place in places]


def test_a_delay_takes_its_time_and_counts_any_operator(tmp_path):
    program = """
ask("*", 2, "delay", seconds=0.4)
begun = time.monotonic()
x + x
first = time.monotonic() - begun
norm()
print(json.dumps([first, time.monotonic() - begun]))
"""
    first, both = answer(tmp_path, program)
    assert first < 0.4 <= both


def test_a_launch_may_end_the_process(tmp_path):
    done = run(tmp_path, 'ask("npu_rms_norm", 1, "kill")\nnorm()\nprint("lives")')
    assert (done.returncode, done.stdout) == (-signal.SIGKILL, "")


def test_a_file_that_is_there_before_the_process_counts_from_its_start(tmp_path):
    asked = [{"operator": "npu_rms_norm", "launch": 1, "fault": "nan"}]
    (tmp_path / "faults.json").write_text(json.dumps(asked))
    assert answer(tmp_path, "print(json.dumps([is_nan(norm()), is_nan(norm())]))") == [True, False]


def test_only_processes_of_that_title(tmp_path):
    # The title holds this program's text, too: so the word is put together there.
    program = """
found = []
for reversed_word in ("rehtona", "nohtyp"):
    ask("npu_rms_norm", 1, "nan", process=reversed_word[::-1])
    found.append(is_nan(norm()))
print(json.dumps(found))
"""
    assert answer(tmp_path, program) == [False, True]


def test_what_there_is_not_is_refused_and_says_what_there_is(tmp_path):
    path = tmp_path / "faults.json"
    for asked, expected in (
        ("{", "is not JSON"),
        ("{}", "no list"),
        ('[{"operator": "a"}]', "operator, launch and fault"),
        ('[{"operator": "a", "launch": 0, "fault": "nan"}]', "the first launch is 1"),
        (
            '[{"operator": "a", "launch": 1, "fault": "melt"}]',
            "error, nan, flip, memory, delay, kill, lost",
        ),
        ('[{"operator": "a", "launch": 1, "fault": "nan", "rank": 1}]', "no rank"),
        ('[{"operator": "a", "launch": 1, "fault": "lost", "times": 0}]', "once or more"),
        ('[{"operator": "triton.a", "launch": 1, "fault": "lost"}]', "Python implements"),
        ('[{"operator": "aten::add", "launch": 1, "fault": "nan"}]', "Python implements"),
    ):
        path.write_text(asked)
        with pytest.raises(faults.FaultError, match=expected):
            faults.read(path)
    done = run(tmp_path, "print(1)")
    assert done.returncode != 0
    assert "Python implements" in done.stderr

# SPDX-License-Identifier: Apache-2.0
"""What memory holds that nothing was written to, and what rows that operators leave undefined."""

import json
import os
import subprocess
import sys

import pytest

PROGRAM = """
import json
import torch, torch_npu
from emulated_npu.operators.moe_routing import RoutingRequest, init_routing

fresh = torch.empty(1024, device="npu").cpu()
counted = torch.empty(1024, dtype=torch.int32, device="npu").cpu()
graph = torch.npu.NPUGraph()
with torch.npu.graph(graph):
    captured = torch.empty(4, device="npu")
    captured[:2].fill_(7.0)
before = captured.cpu()
graph.replay()
after = captured.cpu()

def words(tensor):
    kinds = [("nan", tensor.isnan()), ("zero", tensor == 0), ("minus one", tensor == -1)]
    return next((name for name, found in kinds if bool(found.all())), "other")

# One of two choices is of this rank's experts.
rows, *_ = init_routing(
    "routing", torch.ones(1, 8), torch.tensor([[0, 3]], dtype=torch.int32), None, None,
    RoutingRequest(-1, 4, 0, 1, -1, [0, 2], 0),
)
print(json.dumps([words(fresh), words(counted), words(before), words(after[2:]), after[0].item(),
                  words(rows[0]), words(rows[1])]))
"""


@pytest.mark.parametrize(
    ("asked", "memory", "integers", "rows"),
    [
        ("zero", "zero", "zero", "zero"),
        ("nan", "nan", "minus one", "zero"),
        ("undefined", "nan", "minus one", "nan"),
    ],
)
def test_memory_holds_what_is_asked_for(asked, memory, integers, rows):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, "EMULATED_NPU_UNWRITTEN": asked},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found == [memory, integers, memory, memory, 7.0, "other", rows]

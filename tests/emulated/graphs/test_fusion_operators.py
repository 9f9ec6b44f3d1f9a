# SPDX-License-Identifier: Apache-2.0
"""What vllm-ascend's fusion passes name exists on the emulated NPU, and is right.

The passes are on by default in bfloat16. They look operators up while a model is compiled, so a
missing one ends the start of an engine.
"""

from __future__ import annotations

import math

import pytest
import torch

from tests.emulated.graphs import fusion_probe
from tests.support.operators.operator_testing import assert_near, random_tensor
from tests.support.programs import answer_of

pytestmark = pytest.mark.host("0.23")


def test_every_operator_that_the_fusion_passes_name_is_there():
    answer = answer_of(fusion_probe.fusion, {"task": "names"})
    names = set(answer["names"])
    # What the scan must at least have seen, or it sees nothing.
    assert {
        "npu.npu_dynamic_quant",
        "npu.npu_add_rms_norm_dynamic_mx_quant",
        "_C_ascend.matmul_allreduce_add_rmsnorm",
        "vllm.muls_add",
        "vllm.qkv_rmsnorm_rope",
    } <= names
    assert len(names) >= 18
    assert not answer["missing"]


def test_the_scan_finds_what_is_missing():
    source = (
        "def f(x):\n    return torch.ops.npu.npu_no_such(x), torch.ops._C_ascend.none_such(x)\n"
    )
    found = fusion_probe.names_in(source)
    assert found == {"npu.npu_no_such", "_C_ascend.none_such"}


def rope_by_loops(row, weight, epsilon, cosines, sines):
    root = math.sqrt(sum(value * value for value in row) / len(row) + epsilon)
    normal = [value / root * factor for value, factor in zip(row, weight, strict=True)]
    half = len(row) // 2
    turned = []
    for place, value in enumerate(normal):
        other = -normal[place + half] if place < half else normal[place - half]
        turned.append(value * cosines[place % half] + other * sines[place % half])
    return turned


def test_norm_and_rotation_of_queries_and_keys_without_triton():
    """qkv_rmsnorm_rope, which is there although vLLM finds no Triton."""
    head, heads, kv_heads, tokens = 128, 2, 1, 3
    qkv = random_tensor(1, (tokens, (heads + 2 * kv_heads) * head), torch.bfloat16)
    q_weight, k_weight = (random_tensor(seed, (head,), torch.bfloat16) for seed in (2, 3))
    table = random_tensor(4, (16, head), torch.bfloat16, spread=1.0)
    positions = [5, 0, 11]
    answer = answer_of(
        fusion_probe.fusion,
        {
            "task": "rope",
            "qkv": qkv.tolist(),
            "weights": [q_weight.tolist(), k_weight.tolist()],
            "table": table.tolist(),
            "positions": positions,
            "sizes": [heads * head, kv_heads * head, head],
        },
    )
    for place, position in enumerate(positions):
        cosines, sines = (
            table[position].double().tolist()[:64],
            table[position].double().tolist()[64:],
        )
        rows = qkv[place].double().unflatten(0, (-1, head)).tolist()
        expected = [
            rope_by_loops(row, q_weight.double().tolist(), 1e-6, cosines, sines) for row in rows[:2]
        ]
        assert_near(torch.tensor(answer["q"][place]).bfloat16(), expected, 0.1)
        expected = [rope_by_loops(rows[2], k_weight.double().tolist(), 1e-6, cosines, sines)]
        assert_near(torch.tensor(answer["k"][place]).bfloat16(), expected, 0.1)
        assert answer["v"][place] == rows[3]


def test_scaled_addition_without_triton():
    x, y = (random_tensor(seed, (3, 40), torch.bfloat16) for seed in (1, 2))
    answer = answer_of(
        fusion_probe.fusion, {"task": "muls_add", "x": x.tolist(), "y": y.tolist(), "scale": 2.5}
    )
    expected = [
        [2.5 * a + b for a, b in zip(left, right, strict=True)]
        for left, right in zip(x.double().tolist(), y.double().tolist(), strict=True)
    ]
    assert_near(torch.tensor(answer["sum"]).bfloat16(), expected)

# SPDX-License-Identifier: Apache-2.0
"""Top-k and top-p against a scalar float64 reference, and against vLLM's own filter."""

from __future__ import annotations

import math

import torch
from hypothesis import given
from hypothesis import strategies as st

from emulated_npu.operators.sampling import npu_top_k_top_p
from tests.support.operators.operator_testing import few, random_tensor, refused, seeds


def reference_kept(row: list[float], p: float | None, k: int | None) -> set[int]:
    """Indices that stay: first the k largest (with ties), then the nucleus of mass p."""
    order = sorted(range(len(row)), key=lambda index: (row[index], index))
    kept = order
    if k is not None:
        threshold = row[order[-k]]
        kept = [index for index in order if row[index] >= threshold]
    if p is None:
        return set(kept)
    largest = max(row)
    weights = [math.exp(row[index] - largest) for index in kept]
    total, mass, nucleus = sum(weights), 0.0, []
    for index, weight in zip(kept, weights, strict=True):
        mass += weight / total
        if mass > 1 - p:
            nucleus.append(index)
    return set(nucleus or kept[-1:])


@few
@given(seeds, st.integers(1, 4), st.integers(1, 30), st.booleans(), st.booleans())
def test_top_k_top_p(seed, batch, vocabulary, with_p, with_k):
    logits = random_tensor(seed, (batch, vocabulary), spread=4)
    p = random_tensor(seed + 1, (batch,), spread=0.5) + 0.5 if with_p else None
    generator = torch.Generator().manual_seed(seed)
    k = None
    if with_k:
        k = torch.randint(1, vocabulary + 1, (batch,), generator=generator, dtype=torch.int32)
    result = npu_top_k_top_p.checked(logits, p, k)
    for row in range(batch):
        kept = reference_kept(
            logits[row].double().tolist(),
            None if p is None else float(p[row]),
            None if k is None else int(k[row]),
        )
        for index in range(vocabulary):
            expected = float(logits[row, index]) if index in kept else -math.inf
            assert float(result[row, index]) == expected


def test_ties_at_the_kth_place_all_stay():
    logits = torch.tensor([[1.0, 3.0, 2.0, 2.0, 0.0]])
    result = npu_top_k_top_p.checked(logits, None, torch.tensor([2], dtype=torch.int32))
    assert result.isfinite().tolist() == [[False, True, True, True, False]]


def test_one_logit_stays_at_p_zero():
    logits = torch.tensor([[1.0, 3.0, 2.0]])
    result = npu_top_k_top_p.checked(logits, torch.zeros(1), None)
    assert result.isfinite().tolist() == [[False, True, False]]


def test_refusals():
    logits, p = torch.zeros(2, 8), torch.ones(2)
    k = torch.ones(2, dtype=torch.int32)
    with refused("npu_top_k_top_p: k is int64; documented: int32"):
        npu_top_k_top_p.checked(logits, p, k.long())
    with refused("the largest of k is 9; it must be from 1 to 8"):
        npu_top_k_top_p.checked(logits, p, k + torch.tensor([0, 8], dtype=torch.int32))
    with refused("logits is float32, p is float16"):
        npu_top_k_top_p.checked(logits, p.half(), k)
    with refused(r"p has shape \(1,\); it must be \(2\)"):
        npu_top_k_top_p.checked(logits, p[:1], k)
    with refused("the least of p is 2.0; it must be from 0 to 1"):
        npu_top_k_top_p.checked(logits, p * 2, k)

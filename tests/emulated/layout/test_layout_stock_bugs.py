# SPDX-License-Identifier: Apache-2.0
"""Plans of layouts that vllm-ascend 0.23.0 fails at (``tests/layout_bugs.md``)."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from mkv_ascend.layout.materialize import materialize
from mkv_ascend.layout.plan import make_plan
from tests.support.caches.layer_cases import (
    COMPRESSED,
    DSA,
    GQA,
    HYBRID_PAGE,
    SFA,
    WINDOW,
    attn,
    dense,
    latent,
    mamba,
    planned,
    sparse,
)
from tests.support.caches.stock_caches import NUM_BLOCKS, Layers

pytestmark = pytest.mark.host("0.23")

FULL = dense(192, 4, head_size_v=64)
STATES: Layers = [("model.9.linear_attn", mamba(), None)]
HYBRID = dense(256, 2, **HYBRID_PAGE)

BUGS: dict[str, Sequence[Layers]] = {
    "1: keys of 192, values of 128": [attn(dense(192, head_size_v=128), backend=GQA)],
    "2: a page of 192 and 64 shared with one of 128 and 128": [
        attn(FULL, backend=GQA),
        attn(WINDOW, backend=GQA, prefix="w"),
    ],
    "3: a dense draft beside sparse attention": [
        [*attn(*sparse((512, 64, 128)), backend=SFA), *attn(dense(), backend=GQA, prefix="d")]
    ],
    "4: a dense draft beside DeepSeek-V4": [
        [
            *attn(latent(head_size=512, **COMPRESSED), backend=DSA),
            *attn(dense(), backend=GQA, prefix="d"),
        ]
    ],
    "5: states of a layer that is not called linear_attn": [[("model.0.mixer", mamba(), None)]],
    "6: an attention layer before the first that shares with states": [
        attn(HYBRID, HYBRID, backend=GQA),
        STATES,
    ],
}


@pytest.mark.parametrize("bug", BUGS)
def test_a_plan_serves_it(bug: str) -> None:
    groups = BUGS[bug]
    layouts = planned(groups)
    if bug.startswith("4"):
        # A row of DeepSeek-V4's cache may stand for several tokens: a block table of its own.
        layouts = [[layout] for layout in layouts[0]]
    made = materialize(make_plan(layouts).bind(NUM_BLOCKS), torch.device("npu:0"))
    for group in groups:
        for name, spec, _ in group:
            cache = made.caches[name]
            assert isinstance(cache, tuple | list)
            held = sum(tensor.numel() * tensor.element_size() for tensor in cache)
            padded = getattr(spec, "page_size_padded", None)
            if padded is None:
                assert held == spec.page_size_bytes * NUM_BLOCKS
            else:
                assert held <= padded * NUM_BLOCKS

# SPDX-License-Identifier: Apache-2.0
"""Rotations whose three axes take turns, as a head of Qwen3-VL has them, by plain loops."""

import math

import torch

from tests.support import hosts

hosts.skip_module_unless("vllm_ascend_0_30", "what is replaced is that host's")

import vllm_ascend.ops  # noqa: E402, F401  before the rest of it: its modules import in a circle
from vllm.config import VllmConfig, set_current_vllm_config  # noqa: E402
from vllm_ascend.ops.rotary_embedding import AscendMRotaryEmbedding  # noqa: E402

from mkv_ascend.adapters.vllm_ascend_0_30.v2.patches import speculators  # noqa: E402

SIZE, BASE, SECTION = 128, 10000.0, [24, 20, 20]
POSITIONS = torch.tensor([[0, 5, 5, 9], [0, 5, 6, 9], [0, 7, 5, 9]])
"""Of four tokens in time, rows and columns: two are parts of a picture."""


def by_loops(states):
    """Pairs of a head follow time, rows and columns in turns, and the last ones time."""
    rotated = states.clone().view(len(states), -1, SIZE)
    half = SIZE // 2
    for token, heads in enumerate(states.view(len(states), -1, SIZE)):
        for pair in range(half):
            axis = pair % 3 if pair < 3 * SECTION[pair % 3] else 0
            angle = float(POSITIONS[axis, token]) * BASE ** (-2 * pair / SIZE)
            low, high = heads[:, pair], heads[:, pair + half]
            rotated[token, :, pair] = low * math.cos(angle) - high * math.sin(angle)
            rotated[token, :, pair + half] = high * math.cos(angle) + low * math.sin(angle)
    return rotated.view_as(states)


def test_each_pair_follows_its_axis():
    with set_current_vllm_config(VllmConfig()):
        layer = AscendMRotaryEmbedding(
            SIZE, SIZE, 64, BASE, True, torch.float32, mrope_section=SECTION, mrope_interleaved=True
        )
    torch.manual_seed(0)
    query, key = torch.randn(4, 2 * SIZE), torch.randn(4, SIZE)
    (rotate,) = speculators.rotate_without_the_kernel.functions.values()
    found = rotate(None, layer, POSITIONS, query.clone(), key.clone())
    torch.testing.assert_close(found, (by_loops(query), by_loops(key)))

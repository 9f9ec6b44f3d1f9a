# SPDX-License-Identifier: Apache-2.0
"""Batches for the tests of the ops: shapes by hypothesis, values by a seeded generator."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from hypothesis import settings
from hypothesis import strategies as st

from mkv_ascend.ops.group_table import group_table

some = settings(max_examples=60)
BLOCK_SIZES = (1, 2, 3, 16, 128, 544, 2048)
JUNK = -77_777


@dataclass
class Groups:
    """Block tables of several KV groups as the op takes them."""

    tables: list[torch.Tensor]
    block_sizes: list[int]

    @property
    def table(self) -> torch.Tensor:
        return group_table(self.tables, self.block_sizes)


def make_groups(
    generator: torch.Generator, rows: int, columns: list[int], block_sizes: list[int]
) -> Groups:
    """Tables that are views of wider ones, whose rest is junk."""
    tables = []
    for count in columns:
        wide = torch.full((rows, count + 3), JUNK, dtype=torch.int32)
        wide[:, :count] = torch.randint(0, 1000, (rows, count), generator=generator)
        tables.append(wide[:, :count])
    return Groups(tables, block_sizes)


@st.composite
def groups(draw: st.DrawFn, rows: int, generator: torch.Generator) -> Groups:
    """One to four KV groups whose tables have ``rows`` rows, or one less."""
    sizes = draw(st.lists(st.sampled_from(BLOCK_SIZES), min_size=1, max_size=4))
    columns = [draw(st.integers(1, 6)) for _ in sizes]
    return make_groups(generator, max(rows - draw(st.integers(0, 1)), 0), columns, sizes)


def junk(shape: tuple[int, ...], dtype: torch.dtype = torch.int32) -> torch.Tensor:
    """An output to be written, as a view of a buffer whose rows are longer."""
    value = JUNK if dtype.itemsize > 1 else -77
    wide = torch.full((*shape[:-1], shape[-1] + 5), value, dtype=dtype)
    return wide[..., : shape[-1]]


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)

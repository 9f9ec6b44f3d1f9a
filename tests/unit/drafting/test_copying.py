# SPDX-License-Identifier: Apache-2.0
"""Copies of metadata beside those of Python's own ``copy``."""

from __future__ import annotations

import copy
from dataclasses import dataclass

from mkv_ascend.drafting.draft import shallow_copy


@dataclass
class Metadata:
    lengths: list[int]
    causal: bool = True

    def __post_init__(self) -> None:
        self.derived = len(self.lengths)


def test_a_copy_is_that_of_python() -> None:
    original = Metadata([1, 2], causal=False)
    original.derived = 7
    found, expected = shallow_copy(original), copy.copy(original)
    assert type(found) is Metadata
    assert vars(found) == vars(expected)
    assert found.lengths is original.lengths
    found.causal = True
    assert original.causal is False

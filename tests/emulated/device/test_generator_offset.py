# SPDX-License-Identifier: Apache-2.0
"""vLLM takes back the draw of a half-prefilled request: get_offset, then set_offset of 4 less."""

from __future__ import annotations

import pytest
import torch


def draw(generator: torch.Generator) -> torch.Tensor:
    return torch.empty(50, device="npu").exponential_(generator=generator)


def test_a_draw_that_was_taken_back_is_drawn_again() -> None:
    generator = torch.Generator("npu").manual_seed(7)
    first, second = draw(generator), draw(generator)
    assert not torch.equal(first, second)
    generator.set_offset(generator.get_offset() - 4)
    assert torch.equal(draw(generator), second)


def test_taking_back_two_draws_and_an_offset_that_does_not_move() -> None:
    generator = torch.Generator("npu").manual_seed(7)
    first = draw(generator)
    draw(generator)
    generator.set_offset(generator.get_offset())
    generator.set_offset(generator.get_offset() - 8)
    assert torch.equal(draw(generator), first)


def test_an_offset_that_cannot_be_reached_is_refused() -> None:
    generator = torch.Generator("npu").manual_seed(7)
    draw(generator)
    with pytest.raises(NotImplementedError, match="last 8 draws only, not from offset 4 to 100"):
        generator.set_offset(100)


def test_a_new_seed_forgets_the_draws() -> None:
    generator = torch.Generator("npu").manual_seed(7)
    draw(generator)
    generator.manual_seed(8)
    assert generator.get_offset() == 0

# SPDX-License-Identifier: Apache-2.0
"""Seeded samples on the device equal the CPU's samples of the same seed."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

Sampler = Callable[[torch.device, "torch.Generator | None"], torch.Tensor]

SAMPLERS: dict[str, Sampler] = {
    "randn": lambda device, generator: torch.randn(50, device=device, generator=generator),
    "rand": lambda device, generator: torch.rand(50, device=device, generator=generator),
    "randint": lambda device, generator: torch.randint(
        99, (50,), device=device, generator=generator
    ),
    "randperm": lambda device, generator: torch.randperm(50, device=device, generator=generator),
    "exponential_": lambda device, generator: torch.empty(50, device=device).exponential_(
        generator=generator
    ),
    "bernoulli": lambda device, generator: torch.bernoulli(
        torch.full((50,), 0.3, device=device), generator=generator
    ),
    "multinomial": lambda device, generator: torch.multinomial(
        torch.arange(1.0, 21, device=device), 10, generator=generator
    ),
}

NPU = torch.device("npu", 0)
CPU = torch.device("cpu")


@pytest.mark.parametrize("name", SAMPLERS)
def test_a_generator_of_the_device_draws_what_the_cpu_draws(name: str) -> None:
    on_device = SAMPLERS[name](NPU, torch.Generator("npu").manual_seed(7))
    on_host = SAMPLERS[name](CPU, torch.Generator().manual_seed(7))
    assert on_device.device == NPU
    assert torch.equal(on_device.cpu(), on_host)
    other = SAMPLERS[name](NPU, torch.Generator("npu").manual_seed(8))
    assert not torch.equal(on_device, other)


@pytest.mark.parametrize("name", SAMPLERS)
def test_the_default_generator_follows_the_seed_of_the_device(name: str) -> None:
    torch.npu.manual_seed(11)
    first = SAMPLERS[name](NPU, None)
    second = SAMPLERS[name](NPU, None)
    assert not torch.equal(first, second)
    torch.manual_seed(11)
    torch.rand(5)  # draws of the CPU do not move the device's generator
    assert torch.equal(SAMPLERS[name](NPU, None), first)


def test_each_device_has_its_own_generator() -> None:
    torch.npu.manual_seed_all(3)
    first = torch.rand(4, device="npu:0")
    assert torch.equal(torch.rand(4, device="npu:1").cpu(), first.cpu())
    torch.rand(4, device="npu:0")
    torch.npu.manual_seed(3)
    assert torch.equal(torch.rand(4, device="npu:0"), first)


def test_state_can_be_kept_and_put_back() -> None:
    state = torch.npu.get_rng_state()
    first = torch.rand(4, device="npu")
    torch.npu.set_rng_state(state)
    assert torch.equal(torch.rand(4, device="npu"), first)
    generator = torch.Generator("npu").manual_seed(5)
    assert generator.device.type == "npu"
    assert generator.initial_seed() == 5
    twin = generator.clone_state()
    assert torch.equal(
        torch.rand(4, device="npu", generator=generator),
        torch.rand(4, device="npu", generator=twin),
    )


def test_fork_rng_restores_the_device() -> None:
    torch.npu.manual_seed(1)
    with torch.random.fork_rng(devices=[0], device_type="npu"):
        inside = torch.rand(3, device="npu")
    assert torch.equal(torch.rand(3, device="npu"), inside)


def test_a_generator_of_the_cpu_is_refused() -> None:
    with pytest.raises(RuntimeError, match=r"Expected a 'npu' device type for generator"):
        torch.empty(3, device="npu").exponential_(generator=torch.Generator())


def test_the_last_draw_of_a_generator_can_be_taken_back() -> None:
    """vLLM does so for requests whose prompt is not complete: ``set_offset(get_offset() - 4)``."""
    generator = torch.Generator("npu").manual_seed(9)
    row = torch.empty(2, 5, device="npu")[1]
    first = row.exponential_(generator=generator).clone()
    second = row.exponential_(generator=generator).clone()
    generator.set_offset(generator.get_offset() - 4)
    assert torch.equal(row.exponential_(generator=generator), second)
    generator.set_offset(generator.get_offset() - 8)
    assert torch.equal(row.exponential_(generator=generator), first)
    with pytest.raises(NotImplementedError, match="goes back to the start of one of its last"):
        generator.set_offset(1000)


# vLLM takes back the draw of a half-prefilled request: get_offset, then set_offset of 4 less.


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

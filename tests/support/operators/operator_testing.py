# SPDX-License-Identifier: Apache-2.0
"""What the tests of emulated operators share: random tensors and comparison with float64."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st

from emulated_npu.operators.registry import OperatorArgumentError

FLOAT_DTYPES = (torch.float16, torch.bfloat16, torch.float32)
# A few units in the last place, since a result may be rounded twice.
TOLERANCE = {torch.float16: 4e-3, torch.bfloat16: 3e-2, torch.float32: 2e-5}

few = settings(max_examples=25, deadline=None)
float_dtypes = st.sampled_from(FLOAT_DTYPES)
seeds = st.integers(0, 2**31)


def random_tensor(
    seed: int, shape: tuple[int, ...], dtype: torch.dtype = torch.float32, spread: float = 2.0
) -> torch.Tensor:
    """Values from -spread to spread, rounded to `dtype`."""
    generator = torch.Generator().manual_seed(seed)
    values = (torch.rand(shape, generator=generator) * 2 - 1) * spread
    return values.to(dtype)


def random_integers(
    seed: int, low: int, high: int, shape: tuple[int, ...], dtype: torch.dtype = torch.int32
) -> torch.Tensor:
    """Integers from low to high - 1."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(low, high, shape, generator=generator, dtype=dtype)


def assert_near(actual: torch.Tensor, reference: object, tolerance: float | None = None) -> None:
    """Compare with a float64 reference (numbers in nested lists, or a tensor)."""
    expected = torch.as_tensor(reference, dtype=torch.float64).reshape(actual.shape)
    allowed = TOLERANCE[actual.dtype] if tolerance is None else tolerance
    torch.testing.assert_close(actual.double(), expected, rtol=allowed, atol=allowed)


@contextmanager
def refused(pattern: str) -> Iterator[None]:
    """The strict check of an operator refuses, with a message that matches."""
    with pytest.raises(OperatorArgumentError, match=pattern):
        yield

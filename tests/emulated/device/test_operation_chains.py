# SPDX-License-Identifier: Apache-2.0
"""Random chains of operations give on the device what they give on the CPU, bit for bit.

A chain works on a pool of tensors: operations make new tensors, make views, or write in place, so
a lost alias, a wrong storage offset or a result on wrong memory shows in some later step.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

Operation = Callable[[torch.Tensor, torch.Tensor, int], torch.Tensor]


def rows(x: torch.Tensor, number: int) -> int:
    """A legal row of ``x`` derived from a drawn number."""
    return number % x.shape[0]


def put_row(x: torch.Tensor, y: torch.Tensor, number: int) -> torch.Tensor:
    x[rows(x, number)] = y.reshape(-1)[0].clone()
    return x


def add_out(x: torch.Tensor, y: torch.Tensor, number: int) -> torch.Tensor:
    out = torch.empty(number, device=x.device)
    torch.cumsum(x, number % 2, out=out.resize_(0))
    return out


# Every result has two dimensions of at least one element, so that chains do not run dry.
OPERATIONS: dict[str, Operation] = {
    "add": lambda x, y, n: x + y.sum(),
    "multiply": lambda x, y, n: x * (n - 3),
    "matmul": lambda x, y, n: x @ x.t(),
    "cat": lambda x, y, n: torch.cat([x, x * 2], n % 2)[:9, :9],
    "flip": lambda x, y, n: torch.flip(x, [n % 2]),
    "where": lambda x, y, n: torch.where(x > n, x, -x),
    "sort": lambda x, y, n: x.sort(dim=n % 2, stable=True).values,
    "topk": lambda x, y, n: torch.topk(x, 1 + n % x.shape[1], dim=1).values,
    "nonzero": lambda x, y, n: torch.nonzero(torch.ones_like(x)).to(x.dtype)[:9],
    "gather": lambda x, y, n: x.gather(0, (x.abs().long() + n) % x.shape[0]),
    "index": lambda x, y, n: x[torch.arange(x.shape[0] - 1, -1, -1, device=x.device)],
    "mask": lambda x, y, n: x.masked_fill(x > n, n),
    "softmax": lambda x, y, n: torch.softmax(x, n % 2),
    "half": lambda x, y, n: x.to(torch.float16).to(torch.float32),
    "clone": lambda x, y, n: x.clone(),
    "transposed view": lambda x, y, n: x.t(),
    "row view": lambda x, y, n: x[rows(x, n) :],
    "column view": lambda x, y, n: x[:, ::2],
    "flat view": lambda x, y, n: x.reshape(1, -1),
    "strided view": lambda x, y, n: x.as_strided((1, 1), (1, 1), x.storage_offset()),
    "expanded": lambda x, y, n: x[:1, :1].expand(2, 3),
    "window": lambda x, y, n: x.unfold(1, 1, 1)[:, :, 0],
    "add in place": lambda x, y, n: x.clone().add_(y.sum()),
    "fill row": put_row,
    "resized output": add_out,
    "multiply in place": lambda x, y, n: x[rows(x, n)].mul_(0.5).unsqueeze(0),
    "zero in place": lambda x, y, n: x[:, :1].zero_(),
    "copy in place": lambda x, y, n: x.copy_(y.reshape(-1)[0].clone()),
    "index add": lambda x, y, n: x.clone().index_add_(
        0, torch.zeros(1, dtype=torch.int64, device=x.device), x[:1]
    ),
    "resize": lambda x, y, n: x.clone().resize_(1, x.numel()),
}


def run(chain: list[tuple[str, int, int, int]], device: str) -> list[torch.Tensor]:
    pool = [
        (torch.arange(12.0) - 5).reshape(3, 4).to(device),
        torch.arange(6.0).reshape(2, 3).to(device),
    ]
    for name, first, second, number in chain:
        x, y = pool[first % len(pool)], pool[second % len(pool)]
        if name.endswith(("in place", "row")) and 0 in x.stride():
            continue  # PyTorch refuses to write to an expanded tensor
        pool.append(OPERATIONS[name](x, y, number))
    return [tensor.cpu() for tensor in pool]


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(sorted(OPERATIONS)),
            st.integers(0, 20),
            st.integers(0, 20),
            st.integers(0, 7),
        ),
        max_size=14,
    )
)
def test_a_chain_on_the_device_equals_the_chain_on_the_cpu(
    chain: list[tuple[str, int, int, int]],
) -> None:
    on_device, on_host = run(chain, "npu"), run(chain, "cpu")
    for position, (got, expected) in enumerate(zip(on_device, on_host, strict=True)):
        assert got.shape == expected.shape, position
        assert got.stride() == expected.stride() or not expected.is_contiguous(), position
        # Bits, so that NaN equals NaN and -0.0 differs from 0.0.
        assert torch.equal(
            got.contiguous().view(torch.int32), expected.contiguous().view(torch.int32)
        ), position

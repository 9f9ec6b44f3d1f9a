# SPDX-License-Identifier: Apache-2.0
"""Momentum with orthogonalised updates ("Muon"), in float32.

With AdamW alone the models do not learn decks within the minute they may train for. The method is
Keller Jordan's Muon (https://kellerjordan.github.io/posts/muon/). ``torch.optim.Muon`` computes in
bfloat16, which is slow on processors without it, and takes no batched (expert) matrices.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

BLOCK_ROWS = 128
"""A matrix larger than this both ways is orthogonalised in blocks of rows: half the time."""

QUINTIC = (3.4445, -4.7750, 2.0315)
"""Coefficients of the Newton-Schulz polynomial a x + b x^3 + c x^5 from the page named above."""


def orthogonalise(matrices: torch.Tensor, steps: int = 4) -> torch.Tensor:
    """Push all singular values of ``[..., rows, columns]`` towards 1, keeping singular vectors."""
    tall = matrices.shape[-2] > matrices.shape[-1]
    result = matrices.mT if tall else matrices
    result = result / (result.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    linear, cubic, quintic = QUINTIC
    for _ in range(steps):
        gram = result @ result.mT
        result = linear * result + (cubic * gram + quintic * gram @ gram) @ result
    return result.mT if tall else result


def in_blocks(matrix: torch.Tensor) -> torch.Tensor:
    """``[rows, columns]`` as ``[blocks, BLOCK_ROWS, columns]`` if large and divisible."""
    rows, columns = matrix.shape[-2:]
    if matrix.dim() == 2 and rows > BLOCK_ROWS < columns and rows % BLOCK_ROWS == 0:
        return matrix.contiguous().view(-1, BLOCK_ROWS, columns)
    return matrix


class OrthogonalMomentum(torch.optim.Optimizer):
    """Nesterov momentum whose update of each matrix is orthogonalised.

    Parameters are matrices or stacks of them, such as experts' ``[experts, rows, columns]``.
    """

    def __init__(
        self, parameters: Iterable[torch.Tensor], learning_rate: float, momentum: float = 0.95
    ) -> None:
        super().__init__(parameters, {"lr": learning_rate, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """One update from the gradients; parameters without a gradient stay."""
        if closure is not None:
            raise ValueError("OrthogonalMomentum takes no closure; call backward() before step()")
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, parameter.grad, group)

    def _update(
        self, parameter: torch.Tensor, gradient: torch.Tensor, group: dict[str, Any]
    ) -> None:
        state = self.state[parameter]
        if not state:
            state["momentum"] = torch.zeros_like(parameter)
        momentum = state["momentum"].lerp_(gradient, 1 - group["momentum"])
        direction = gradient.lerp(momentum, group["momentum"])
        update = orthogonalise(in_blocks(direction)).view_as(parameter)
        shape_factor = max(1.0, parameter.shape[-2] / parameter.shape[-1]) ** 0.5
        parameter.add_(update, alpha=-group["lr"] * shape_factor)

# SPDX-License-Identifier: Apache-2.0
"""Mamba2 layers of transformers as one masked product over all tokens, for training.

Dao and Gu, "Transformers are SSMs" (2024), section 3: the recurrence over a text of T tokens is a
product with a lower triangular matrix of T by T decayed scores. For texts of a few hundred tokens
that is many times quicker than transformers' own code without its CUDA kernels.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.functional import softplus


def forward(module: Any, hidden_states: torch.Tensor, **_: Any) -> torch.Tensor:
    """What ``module`` gives for whole texts, ``[rows, tokens, hidden]``, from a zero state."""
    tokens, heads = hidden_states.shape[1], module.num_heads
    sizes = [module.intermediate_size, module.conv_dim, heads]
    gate, mixed, dt = module.in_proj(hidden_states).split(sizes, dim=-1)
    mixed = module.act(module.conv1d(mixed.mT)[..., :tokens].mT)
    states = module.n_groups * module.ssm_state_size
    x, keys, queries = mixed.split([module.intermediate_size, states, states], dim=-1)
    x = x.unflatten(-1, (heads, -1)).transpose(1, 2)
    steps = softplus(dt + module.dt_bias).clamp(*module.time_step_limit).mT
    decayed = decays(-module.A_log.exp()[:, None] * steps)
    scores = per_group(queries, module) @ per_group(keys, module).mT
    scores = scores.repeat_interleave(heads // module.n_groups, dim=1)
    result = (scores * decayed) @ (steps[..., None] * x) + module.D[:, None, None] * x
    return module.out_proj(module.norm(result.transpose(1, 2).flatten(2), gate))


def per_group(parts: torch.Tensor, module: Any) -> torch.Tensor:
    """``[rows, tokens, groups * states]`` as ``[rows, groups, tokens, states]``."""
    return parts.unflatten(-1, (module.n_groups, -1)).transpose(1, 2)


def decays(logarithms: torch.Tensor) -> torch.Tensor:
    """How much of token ``j`` is left at token ``i``, from the log of each token's decay.

    ``[..., tokens]`` to ``[..., tokens, tokens]``, lower triangular.
    """
    total = logarithms.cumsum(-1)
    difference = total[..., :, None] - total[..., None, :]
    later = torch.ones(difference.shape[-2:], dtype=torch.bool).tril()
    return difference.masked_fill(~later, float("-inf")).exp()

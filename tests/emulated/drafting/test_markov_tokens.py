# SPDX-License-Identifier: Apache-2.0
"""Draft tokens of method dspark that depend on each other, against plain loops. No engine."""

from types import SimpleNamespace

import pytest
import torch
import vllm_ascend.ops  # noqa: F401  before the rest of it: its modules import in a circle

from tests.support import hosts
from tests.support.draft_facts import loaded

pytestmark = pytest.mark.core

hosts.skip_module_unless("vllm_ascend_0_30", "vLLM 0.23.0 knows no method dspark")

dspark = hosts.module("drafting.dspark")

REQUESTS, K, WIDTH, DRAFTED = 3, 4, 8, 11
"""The head drafts fewer tokens than the target has; each is another number there."""


class Model:
    """A head's output matrix, and what each token adds to the logits of the next one."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(2)
        self.output = torch.randn(WIDTH, DRAFTED, generator=generator)
        self.of_token = torch.randn(2 * DRAFTED, WIDTH, generator=generator)
        self.of_embedding = torch.randn(WIDTH, DRAFTED, generator=generator)

    def compute_draft_logits(self, states: torch.Tensor) -> torch.Tensor:
        return states @ self.output

    def markov_embed(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.of_token[tokens]

    def markov_bias(self, embedded: torch.Tensor) -> torch.Tensor:
        return embedded @ self.of_embedding

    def map_draft_to_target(self, tokens: torch.Tensor) -> torch.Tensor:
        return 2 * tokens


@pytest.mark.parametrize("first", [0, 1], ids=["from the anchor", "behind the anchor"])
def test_each_token_follows_the_one_before_it(first: int) -> None:
    """The first one follows the token that the target sampled, with which each window begins."""
    model, window = Model(), K + first
    rows = torch.arange(REQUESTS * window).view(REQUESTS, window)
    generator = torch.Generator().manual_seed(3)
    states = torch.randn(REQUESTS * window, WIDTH, generator=generator)
    token_ids = torch.full((REQUESTS * window + 5,), 1, dtype=torch.int32)
    sampled = torch.tensor([4, 9, 20], dtype=torch.int32)
    token_ids[rows[:, 0]] = sampled
    buffers = SimpleNamespace(token_ids=token_ids)
    of_draft = loaded(model, buffers, num_speculative_tokens=K, from_anchor=not first)
    draft = dspark.MarkovDraft(of_draft, None)
    expected = []
    for request, token in enumerate(sampled.tolist()):
        for row in rows[request, first:]:
            bias = model.of_token[token] @ model.of_embedding
            token = 2 * int((states[row] @ model.output + bias).argmax())
            expected.append(token)
    sample_rows = rows[:, first:].flatten()
    assert draft.sample(states, sample_rows).tolist() == expected
    out = torch.zeros(REQUESTS * K, dtype=torch.int64)
    assert draft.sample(states, sample_rows, out) is out
    assert out.tolist() == expected

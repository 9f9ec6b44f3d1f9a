# SPDX-License-Identifier: Apache-2.0
"""The tests of distributions raise no false alarm, and notice a wrong rejection sampler."""

import pytest
import torch

from tests.support.distribution import FALSE_ALARMS, events_p_value, ranks_p_value

NUM_TOKENS = 800


def draws(seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Distributions ``[tokens, 30]``, a token drawn from each, and a draft's choice for each."""
    generator = torch.Generator().manual_seed(seed)
    rows = (2 * torch.randn(NUM_TOKENS, 30, generator=generator)).softmax(-1)
    tokens = torch.multinomial(rows, 1, generator=generator)[:, 0]
    noise = 0.05 * torch.rand(rows.shape, generator=generator)
    return rows, tokens, (rows + noise).argmax(-1)


def p_values(rows: torch.Tensor, tokens: torch.Tensor, drafted: torch.Tensor) -> list[float]:
    chosen_rows = rows[torch.arange(len(rows)), drafted]
    return [
        ranks_p_value(list(rows), tokens.tolist()),
        events_p_value(chosen_rows.tolist(), (tokens == drafted).tolist()),
    ]


def test_right_tokens_raise_no_alarm() -> None:
    """And the p-values are uniform: over 60 runs their smallest is not tiny, nor all are large."""
    found = torch.tensor([p_values(*draws(seed)) for seed in range(60)])
    assert found.min() > FALSE_ALARMS
    for column in found.T:
        assert 0.2 < column.mean() < 0.8
        assert (column < 0.5).sum() in range(12, 49)


def test_a_draft_that_is_accepted_too_often_is_noticed() -> None:
    rows, tokens, drafted = draws(1)
    accepted = torch.rand(len(rows), generator=torch.Generator().manual_seed(2)) < 0.25
    wrong = torch.where(accepted, drafted, tokens)
    assert max(p_values(rows, wrong, drafted)) < FALSE_ALARMS


def test_a_rejected_token_that_is_drawn_again_is_noticed() -> None:
    """A likely slip: after a rejection the draft's token is among those to draw from."""
    rows, tokens, drafted = draws(3)
    generator = torch.Generator().manual_seed(4)
    own = rows[torch.arange(len(rows)), drafted]
    accepted = torch.rand(len(rows), generator=generator) < own
    wrong = torch.where(accepted, drafted, tokens)
    assert p_values(rows, wrong, drafted)[1] < FALSE_ALARMS


def test_sharpened_sampling_is_noticed() -> None:
    rows, _, _ = draws(5)
    generator = torch.Generator().manual_seed(6)
    sharp = torch.multinomial((1.4 * rows.log()).softmax(-1), 1, generator=generator)[:, 0]
    assert ranks_p_value(list(rows), sharp.tolist()) < FALSE_ALARMS


def test_too_few_tokens_are_refused() -> None:
    with pytest.raises(ValueError, match="sample 80"):
        ranks_p_value([torch.ones(2) / 2] * 79, [0] * 79)
    with pytest.raises(ValueError, match="variance is 24"):
        events_p_value([0.5] * 96, [True] * 96)

# SPDX-License-Identifier: Apache-2.0
"""Kimi-Linear: Kimi delta attention beside latent attention, in one pool of blocks.

Judged by a reference of our own (``tests.support.kimi_linear``): transformers has no such
model. Weights are random.
"""

from pathlib import Path

import pytest
import torch

from tests.support import engine, kimi_linear, reference

pytestmark = pytest.mark.host("0.23")

MAX_TOKENS = 12


@pytest.fixture(scope="module")
def weights() -> dict[str, torch.Tensor]:
    return kimi_linear.random_weights(seed=0)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory, weights: dict[str, torch.Tensor]) -> Path:
    path = tmp_path_factory.mktemp("kimi_linear")
    kimi_linear.write_checkpoint(path, weights)
    return path


def prompts(*lengths: int) -> list[list[int]]:
    generator = torch.Generator().manual_seed(1)
    rows = [torch.randint(0, 256, (length - 1,), generator=generator) for length in lengths]
    return [[256, *row.tolist()] for row in rows]


def test_tokens_are_those_of_the_reference(model: Path, weights: dict[str, torch.Tensor]) -> None:
    """In chunks, in a mixed batch, and again from the states of cached blocks."""
    case = engine.Scenario(
        model=str(model),
        prompts=prompts(2, 40, 130, 300),
        max_tokens=MAX_TOKENS,
        engine={"enable_prefix_caching": True, "max_num_batched_tokens": 192},
        repeats=2,
    )
    result = engine.run(case)

    def rows(context: list[int], tokens: list[int]) -> torch.Tensor:
        return kimi_linear.logits(weights, [*context, *tokens])[len(context) - 1 :]

    pairs = zip(case.prompts * 2, result.tokens, strict=True)
    proposals = [reference.DraftProposal(prompt, tokens) for prompt, tokens in pairs]
    report = reference.judge(rows, proposals)
    assert report.checked == 8 * MAX_TOKENS
    assert not report.wrong, "\n".join(map(str, report.wrong[:5]))
    assert len(report.near_ties) <= 1
    assert result.cached_tokens[4:] == [0, 0, 128, 256]


def test_a_lost_state_would_be_seen(weights: dict[str, torch.Tensor]) -> None:
    """With what is before the last block forgotten, many tokens are others."""
    (prompt,) = prompts(160)
    whole = kimi_linear.logits(weights, prompt)[128:].argmax(-1)
    forgotten = kimi_linear.logits(weights, prompt, forgetting=128)[128:].argmax(-1)
    assert int((whole != forgotten).sum()) > 10


def test_speculation_is_refused(model: Path) -> None:
    case = engine.Scenario(
        model=str(model),
        prompts=prompts(4),
        engine={
            "speculative_config": {
                "method": "ngram",
                "num_speculative_tokens": 2,
                "prompt_lookup_max": 2,
            }
        },
    )
    with pytest.raises(engine.EngineFailedError, match="Kimi delta attention"):
        engine.run(case)

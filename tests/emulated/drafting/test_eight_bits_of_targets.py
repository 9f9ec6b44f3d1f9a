# SPDX-License-Identifier: Apache-2.0
"""Method mtp: a plain head on hidden states of a target with keys and values of 8 bits."""

import pytest

from tests.support import eight_bits, engine, reference
from tests.support.eight_bit_pairs import (
    BLOCK,
    CHUNK,
    GRAPHS,
    LENGTHS,
    TARGET,
    AtOnce,
    assert_accepted_as_counted,
    assert_said,
    case_of,
    rows_of,
    rows_of_head,
    said,
)
from tests.support.pairs import prompts_of
from tests.support.stock import each_runner
from tests.support.tiny_models import model_directory

NAME = "glm4_moe_wide_mtp"
WITH_MTP = {"speculative": {"method": "mtp"}}
COARSER = 16
"""Times that keys and values are rounded coarser than they must be, so that tokens change."""


def target_of_8_bits():
    return eight_bits.quantised(NAME, cache=True, coarser=COARSER)


def judged(case, result, at_once):
    """Tokens by the target, where a plain cache gives others; draft tokens by the head."""
    target, plain = target_of_8_bits(), model_directory(NAME)
    assert_said(rows_of(target, at_once), said(case, result))
    assert_said(rows_of_head(plain, target, at_once), result.proposals)
    assert_accepted_as_counted(case, result)
    assert reference.judge(rows_of(plain, at_once), said(case, result)).wrong


@pytest.mark.host("0.23", cases=["graphs-v1"])
@pytest.mark.nightly("other cases of it stay", cases=["eager-*"])
@each_runner
@pytest.mark.parametrize("graphs", [{}, GRAPHS], ids=["eager", "graphs"])
def test_a_head_on_a_target_of_8_bits(graphs, runner):
    target = target_of_8_bits()
    case = case_of(target, target, environment=runner, **WITH_MTP, **graphs)
    result = engine.run(case)
    judged(case, result, AtOnce(case))
    assert bool(result.draft_replays) == bool(result.target_replays) == bool(graphs)


@pytest.mark.host("0.23", cases=["v1"])
@pytest.mark.nightly("other cases of it stay", cases=["v2"])
@each_runner
def test_chunks_of_prompts_and_prefix_hits(runner):
    """Behind a hit the head reads its own keys, and the target its keys of 8 bits."""
    target = target_of_8_bits()
    prompts = prompts_of(TARGET, LENGTHS)
    stem = max(prompts, key=len)
    # It waits, until others have ended. The token behind the block is the same, of which the head
    # keeps a key in the block.
    prompts.append([*stem[: BLOCK + 1], *prompts[0][1:20]])
    case = case_of(
        target,
        target,
        prompts=prompts,
        engine={"enable_prefix_caching": True, "long_prefill_token_threshold": CHUNK},
        environment=runner,
        **WITH_MTP,
    )
    result = engine.run(case)
    assert result.cached_tokens == [0] * len(LENGTHS) + [BLOCK]
    judged(case, result, AtOnce(case, CHUNK, hits=(len(LENGTHS),)))

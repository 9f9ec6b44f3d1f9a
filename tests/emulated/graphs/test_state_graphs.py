# SPDX-License-Identifier: Apache-2.0
"""Recurrent layers in ACL graphs: a chunk of a prompt is not replayed as a step of decoding.

Graphs are chosen by shape. A chunk of K + 1 tokens looks like a verify step, and the first token of
a prompt looks like a decode. Both would go on from a state that is not this request's.
"""

import pytest

from tests.support import engine, prompts, reference
from tests.support.pairs import (
    assert_drafts_are_the_drafts_own,
    assert_greedy_tokens_of_reference,
    scenario,
)
from tests.support.tiny_models import model_directory

pytestmark = pytest.mark.host("0.23")

GRAPHS = {"graphs": "FULL_DECODE_ONLY", "max_tokens": 16}
K = 3


def cut_prompts(target, lengths):
    """Prompts of ``lengths`` tokens."""
    return [
        reference.token_ids(model_directory(target), prompts.held_out_text(index, 80))[:length]
        for index, length in enumerate(lengths)
    ]


def test_chunks_of_as_many_tokens_as_a_verify_step():
    case = scenario(
        "qwen3_next",
        "llama_draft",
        prompts=cut_prompts("qwen3_next", [12, 13, 16, 23, 40]),
        engine={"long_prefill_token_threshold": K + 1, "max_num_seqs": 4},
        capture_sizes=(4, 8, 16),
        **GRAPHS,
    )
    result = engine.run(case)
    assert engine.replayed(result.log)
    assert_greedy_tokens_of_reference(case, result)
    assert_drafts_are_the_drafts_own(case, result)
    assert 0 < result.num_accepted < result.num_draft_tokens


def test_prompts_of_one_token():
    """More than there are rows, so that blocks come back with what earlier requests left there."""
    case = scenario(
        "granite4",
        prompts=cut_prompts("granite4", [30, 1, 20, 1, 9, 1, 40, 1]),
        engine={"max_num_seqs": 2, "num_gpu_blocks_override": 9},
        capture_sizes=(1, 2),
        **GRAPHS,
    )
    result = engine.run(case)
    assert engine.replayed(result.log)
    assert_greedy_tokens_of_reference(case, result)

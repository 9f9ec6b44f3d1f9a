# SPDX-License-Identifier: Apache-2.0
"""Method dflash whose layers have windows beside layers that see all, as published heads have.

A layer with a window sees no mask token behind its own; the others see the whole block. So target
and draft lie in several KV groups, and the draft's need two masks. vLLM takes such a head on model
runner V2 alone.

Other published heads have windows of layers that see the mask tokens behind their own, too: all
layers where ``use_swa`` is set, any where ``is_causal`` or ``causal`` is false.
"""

import dataclasses
from pathlib import Path

import pytest

from tests.support import hosts, speculation
from tests.support.loop_judgement import (
    assert_every_draft_token,
    assert_reference,
    drafter_of,
)
from tests.support.marks import needs_float32
from tests.support.pairs import kv_groups, prompts_of, scenario, with_config
from tests.support.stock import RUNNER_V2
from tests.support.tiny_models import model_directory

hosts.skip_module_unless("vllm_ascend_0_30", "vLLM 0.23.0 leaves windows of such a head out")

pytestmark = needs_float32
PAIR = ("gpt_oss", "gpt_oss_windows_dflash", "dflash")
SLIDING, WHOLE = "sliding_attention", "full_attention"


def test_proposals_and_acceptance_are_those_of_plain_loops():
    """With more tokens than the head was trained for."""
    k, sizes = 5, (6, 24)
    result = assert_reference(
        *PAIR,
        k,
        RUNNER_V2,
        graphs="FULL_DECODE_ONLY",
        capture_sizes=sizes,
        engine={"num_gpu_blocks_override": 40},
    )
    assert len(kv_groups(result, "draft")) > 1


def test_every_draft_token_without_graphs_and_behind_prefix_hits():
    target, head, method = PAIR
    case = scenario(
        target,
        head,
        prompts=prompts_of(target, [265, 268, 5]),
        max_tokens=20,
        speculative={"method": method},
        environment=RUNNER_V2,
        repeats=2,
    )
    k = case.num_speculative_tokens
    drafter = drafter_of(model_directory(target), head, method, k)
    result = assert_every_draft_token(case, drafter, least=30 * k)
    assert max(result.cached_tokens) >= 128


def options(**more):
    """``dflash_config`` with the head's own mask token and depths."""
    return {"mask_token_id": 263, "target_layer_ids": [0, 1, 2], **more}


SEE_LATER = {"dflash_config": options(causal=False)}
"""Layers with windows see later mask tokens, in words that loops read."""
CASES = [
    pytest.param({}, {"layer_types": [SLIDING] * 3}, {"layer_types": [SLIDING] * 3}, id="causal"),
    pytest.param(
        {},
        {"layer_types": [WHOLE] * 3, "dflash_config": options(use_swa=True)},
        {"layer_types": [SLIDING] * 3, **SEE_LATER},
        id="use_swa",
    ),
    # The first mask tokens do not see the last ones.
    pytest.param(
        RUNNER_V2,
        {"is_causal": False, "sliding_window": 3},
        {"sliding_window": 3, **SEE_LATER},
        id="shorter than the block",
    ),
]


@pytest.mark.parametrize(("runner", "asked", "of_loops"), CASES)
def test_every_draft_token_eagerly_and_in_graphs(runner, asked, of_loops, tmp_path):
    """Model runner V1 takes windows in all layers or none."""
    target, head, method = PAIR
    draft, loops = (tmp_path / name for name in ("engine", "loops"))
    draft.mkdir()
    loops.mkdir()
    case = scenario(
        target,
        head,
        prompts=prompts_of(target, [130, 40, 5]),
        max_tokens=32,
        speculative={"method": method},
        environment=runner,
        graphs="FULL_DECODE_ONLY",
        capture_sizes=(4, 8, 12),
    )
    k = case.num_speculative_tokens
    case = dataclasses.replace(case, draft=with_config(head, draft, **asked))
    loops = Path(with_config(head, loops, **of_loops))
    drafter = speculation.DraftBlock(loops, model_directory(target), k)
    result = assert_every_draft_token(case, drafter, least=20 * k)
    assert result.draft_replays > 5

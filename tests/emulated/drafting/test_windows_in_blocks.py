# SPDX-License-Identifier: Apache-2.0
"""Method dflash whose layers have windows beside layers that see all, as published heads have.

A layer with a window sees no mask token behind its own; the others see the whole block. So target
and draft lie in several KV groups, and the draft's need two masks. vLLM takes such a head on model
runner V2 alone.
"""

import dataclasses
import itertools
from pathlib import Path
from types import SimpleNamespace

import pytest

from mkv_ascend.checks.block_layers import (
    SLIDING,
    LayerOfBlocks,
    layers_of_blocks,
    window_of_each_layer,
)
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
WHOLE = "full_attention"
KINDS = (None, [WHOLE, WHOLE], [SLIDING, SLIDING], [SLIDING, WHOLE])
ANSWERS = (None, False, True)


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


def test_every_draft_token_of_windows_in_all_layers_on_model_runner_v1(tmp_path):
    target, head, method = PAIR
    draft = with_config(head, tmp_path, layer_types=[SLIDING] * 3)
    case = scenario(
        target,
        head,
        prompts=prompts_of(target, [130, 40, 5]),
        max_tokens=32,
        speculative={"method": method},
        graphs="FULL_DECODE_ONLY",
        capture_sizes=(4, 8),
    )
    k = case.num_speculative_tokens
    drafter = speculation.DraftBlock(Path(draft), model_directory(target), k)
    assert_every_draft_token(dataclasses.replace(case, draft=draft), drafter, least=20 * k)


@pytest.mark.parametrize(
    ("kinds", "use_swa", "causal", "is_causal"),
    itertools.product(KINDS, (False, True), ANSWERS, ANSWERS),
)
def test_check_reads_windows_and_masks_as_vllm_does(kinds, use_swa, causal, is_causal, monkeypatch):
    from vllm.model_executor.models import qwen3_dflash

    runner_v2 = SimpleNamespace(use_v2_model_runner=True)
    monkeypatch.setattr(qwen3_dflash, "get_current_vllm_config", lambda: runner_v2)
    options = {"use_swa": use_swa, "causal": causal}
    text = {"layer_types": kinds, "dflash_config": options, "is_causal": is_causal}
    config = SimpleNamespace(**text, sliding_window=8, num_hidden_layers=2)
    theirs = [qwen3_dflash._resolve_layer_attention(config, index) for index in range(2)]
    expected = {LayerOfBlocks(window is not None, masked) for window, masked in theirs}
    assert set(layers_of_blocks(text)) == expected
    sizes = [window or 0 for window, _ in theirs]
    assert window_of_each_layer({**text, "sliding_window": 8}, 2) == sizes

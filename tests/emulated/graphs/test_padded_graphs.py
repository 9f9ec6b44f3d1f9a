# SPDX-License-Identifier: Apache-2.0
"""Batches of fewer requests than their graph has: each verify step and proposal is replayed.

The graph's other rows are requests of padding, which verify K tokens as well. Sizes that are no
multiple of K + 1 are rounded up by vLLM.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file
from transformers import LlamaConfig

from tests.support import engine, hosts, prompts, reference, speculation
from tests.support.loop_judgement import REFERENCE_OF, assert_reference, drafter_of
from tests.support.marks import needs_float32
from tests.support.pairs import (
    assert_drafts_are_the_drafts_own,
    assert_greedy,
    assert_greedy_tokens_of_reference,
    checked_drafts,
    prompts_of,
    run_greedy,
    scenario,
    with_config,
)
from tests.support.recorded_proposals import VerifyStep
from tests.support.stock import each_runner
from tests.support.tiny_models import model_directory
from tests.support.tiny_models.heads import Eagle3Head

GDN = ("qwen3_next_mtp", "qwen3_next_mtp", "mtp")


def sizes_of_verify_steps(steps: Sequence[VerifyStep], k: int) -> list[int]:
    """How many requests each step had in which all of them verified K tokens."""
    sizes = []
    while steps:
        size = steps[0].together
        if all(len(one.drafted) == k for one in steps[:size]):
            sizes.append(size)
        steps = steps[size:]
    return sizes


def replayed_steps(
    pair: tuple[str, str, str],
    k: int,
    requests: int,
    environment: Mapping[str, str],
    **fields: Any,
) -> list[int]:
    """Run so many requests at once: all tokens are right, and all verify steps were replayed.

    Returns:
        How many requests each of those had.
    """
    target, draft, method = pair
    name = REFERENCE_OF.get(target, target)
    limits = {"max_num_seqs": requests, "max_num_batched_tokens": 2048}
    case = scenario(
        target,
        draft,
        num_speculative_tokens=k,
        speculative={"method": method},
        prompts=prompts_of(name, range(12, 12 + requests)),
        max_tokens=20,
        environment=dict(environment),
        record_steps=True,
        **{"graphs": "FULL_DECODE_ONLY", **fields, "engine": limits | fields.get("engine", {})},
    )
    result = engine.run(case)
    assert_greedy(model_directory(name), case.prompts, result.tokens, case.max_tokens)
    drafter = drafter_of(model_directory(name), draft, method, k)
    assert checked_drafts(drafter.rows, result.proposals) == k * len(result.proposals)
    assert 0 < result.num_accepted < result.num_draft_tokens
    sizes = sizes_of_verify_steps(result.steps, k)
    assert result.target_replays == result.draft_replays == len(sizes), sizes
    assert max(sizes) == requests
    return sizes


@pytest.mark.host("0.23", cases=["v1-*"])
@pytest.mark.nightly("other cases of it stay", cases=["v1-block", "v2-states"])
@pytest.mark.parametrize(
    ("pair", "k", "mode"),
    [
        pytest.param(GDN, 2, "FULL", id="states"),
        pytest.param(("llama_target", "llama_eagle3", "eagle3"), 3, "FULL", id="head"),
        pytest.param(("gpt_oss", "gpt_oss_dflash", "dflash"), 8, "FULL_DECODE_ONLY", id="block"),
    ],
)
@each_runner
def test_requests_of_padding(
    pair: tuple[str, str, str], k: int, mode: str, runner: Mapping[str, str]
) -> None:
    """Graphs of 1, 5 and 7 requests: up to three of a graph's are padding."""
    sizes = (k + 1, 4 * (k + 1) + 1, 7 * (k + 1))
    assert {2, 3, 4, 6} & {*replayed_steps(pair, k, 7, runner, graphs=mode, capture_sizes=sizes)}


@hosts.only_on("vllm_ascend_0_30", "vLLM 0.23.0 knows no method dspark")
def test_requests_of_padding_of_dspark() -> None:
    pair = ("gpt_oss", "gpt_oss_dspark", "dspark")
    assert {2, 3, 4, 6} & {*replayed_steps(pair, 4, 7, {}, capture_sizes=(5, 24, 35))}


@pytest.mark.nightly("more than 20 s")
@each_runner
def test_twelve_requests_that_verify_five_tokens(runner: Mapping[str, str]) -> None:
    """Sizes as a model of this kind is served with, for more requests than there are."""
    sizes = (1, *range(6, 193, 6))
    replayed_steps(GDN, 5, 12, runner, capture_sizes=sizes, engine={"max_num_seqs": 32})


# Engines in ACL graphs: the tokens are Hugging Face's, and graphs were really replayed.
#
# FULL_DECODE_ONLY of untraced models is with drafts, in test_draft_graphs.py.

LIMITS = {"max_num_batched_tokens": 64, "max_num_seqs": 6}


def run_in_graphs(name, mode, **fields):
    """An engine in graphs, with batches on, between and past the captured sizes."""
    fields["engine"] = {**LIMITS, **fields.get("engine", {})}
    case = scenario(name, graphs=mode, capture_sizes=(1, 2, 4), **fields)
    result = engine.run(case)
    assert engine.replayed(result.log)
    assert_greedy_tokens_of_reference(case, result)


@pytest.mark.host("0.23")
def test_prefill_and_decoding_in_full_graphs():
    run_in_graphs("gemma3", "FULL")


@pytest.mark.host("0.23")
@pytest.mark.parametrize("mode", ["FULL_AND_PIECEWISE", "FULL_DECODE_ONLY"])
def test_a_traced_model(mode):
    """The first is what ``vllm serve`` takes by itself; the second compiles by npugraph_ex."""
    run_in_graphs("llama_target", mode, traced=True)


@pytest.mark.host("0.23")
def test_collectives_in_graphs():
    run_in_graphs("qwen3_moe", "FULL_DECODE_ONLY", engine={"tensor_parallel_size": 2})


# Recurrent layers in ACL graphs: a chunk of a prompt is not replayed as a step of decoding.
#
# Graphs are chosen by shape. A chunk of K + 1 tokens looks like a verify step, and the first token
# of a prompt looks like a decode. Both would go on from a state that is not this request's.

GRAPHS = {"graphs": "FULL_DECODE_ONLY", "max_tokens": 16}
K = 3


def cut_prompts(target, lengths):
    """Prompts of ``lengths`` tokens."""
    return [
        reference.token_ids(model_directory(target), prompts.held_out_text(index, 80))[:length]
        for index, length in enumerate(lengths)
    ]


@pytest.mark.host("0.23")
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


@pytest.mark.host("0.23")
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


# Graphs that vLLM keeps for the next start, in ``VLLM_CACHE_ROOT``.
#
# They are taken by a hash of the configuration, without a look at the model. On the emulated NPU
# nothing is kept by default (``emulated_npu.launch``); these tests ask for what the PyTorch of a
# device does, 2.10: what Dynamo traced is kept, and compiled at each start.

KEEPS = {"VLLM_DISABLE_COMPILE_CACHE": "0", "VLLM_USE_MEGA_AOT_ARTIFACT": "0"}
TAKEN = "Directly load AOT compilation from path"
TARGET, HEAD = "llama_target", "llama_eagle3"
BLUNT = 0.5
"""An epsilon of norms that changes what a head says. Dynamo makes it a constant of the graph."""


def own_rows(head: Path, target: Path):
    """The logits of a head by its weights and the numbers in its config.json."""
    module = Eagle3Head(reference.load_model(target), LlamaConfig.from_pretrained(head))
    module.load_weights(load_file(head / "model.safetensors"))

    def rows(context, drafted):
        known = module.known(speculation.hidden_states_of(target, tuple(context[:-1])))
        return speculation.rows_of_head(module, known, context, drafted)

    return rows


def judged(case, target: Path) -> engine.Result:
    result = run_greedy(case)
    report = reference.judge(
        own_rows(Path(case.draft), target), result.proposals, reference.NEAR_TIE
    )
    assert report.checked == case.num_speculative_tokens * len(result.proposals) > 60
    assert not report.wrong, "\n".join(map(str, report.wrong[:5]))
    assert result.num_accepted > 0 < result.draft_replays
    return result


@pytest.mark.host("0.23", cases=["v1"])
@pytest.mark.nightly("other cases of it stay", cases=["v2"])
@needs_float32
@each_runner
def test_a_head_is_not_given_another_ones_graph(runner, tmp_path):
    """Two heads of one class for one target."""
    target, other = model_directory(TARGET), tmp_path / "head"
    other.mkdir()
    case = scenario(
        TARGET,
        HEAD,
        max_tokens=16,
        speculative={"method": "eagle3"},
        engine={"enforce_eager": False, "max_num_seqs": 2},
        traced=True,
        environment={**runner, **KEEPS, "VLLM_CACHE_ROOT": str(tmp_path / "kept")},
    )
    case = replace(case, prompts=case.prompts[::4])
    first = judged(case, target)
    blunt = replace(case, draft=with_config(HEAD, other, rms_norm_eps=BLUNT))
    second = judged(blunt, target)
    assert first.log.count(TAKEN) == second.log.count(TAKEN) == 0
    assert first.proposals != second.proposals


@pytest.mark.nightly("two engines; that heads are told apart stays")
@needs_float32
@hosts.only_on(
    "vllm_ascend_0_23", "in engines forked from one process 0.30.0rc2 hashes two EPLB policies"
)
def test_a_second_start_drafts_as_the_first(tmp_path):
    """Which traces nothing."""
    kept = {**KEEPS, "VLLM_CACHE_ROOT": str(tmp_path)}
    for taken in (0, 2):  # The target's and the head's.
        result = assert_reference(
            TARGET, HEAD, "eagle3", 3, kept, traced=True, engine={"enforce_eager": False}
        )
        assert result.log.count(TAKEN) == taken
        assert result.draft_replays > 5

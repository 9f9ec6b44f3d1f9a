# SPDX-License-Identifier: Apache-2.0
"""Options of `vllm serve` that are drawn beside others: each comes, and vLLM takes them all."""

from __future__ import annotations

import pytest

from reliability import scenarios, serving_options, started
from reliability.scenarios import Case
from reliability.shortened import is_shortened
from tests.support import reference


@pytest.fixture(autouse=True)
def no_models(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scenarios, "model_directory", lambda name: f"/models/{name}")
    monkeypatch.setattr(reference, "token_ids", lambda folder, text: list(range(2000)))
    monkeypatch.setattr(serving_options, "folder_with_mask", lambda draft: f"/masks/{draft}")
    monkeypatch.setattr(serving_options, "has_experts", lambda folder: "gpt_oss" in folder)


def drawn(monkeypatch: pytest.MonkeyPatch, host: str, runner: str, count: int = 400) -> list[Case]:
    monkeypatch.setattr(serving_options, "installed", lambda: host)
    return [
        serving_options.with_options(started.draw(number, {}, options=True), runner)
        for number in range(count)
    ]


def test_a_number_draws_the_same_again_and_nothing_of_it_where_none_is_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = [started.draw(number, {}) for number in range(40)]
    cases = drawn(monkeypatch, "0.23.0", "v1", 40)
    assert cases == drawn(monkeypatch, "0.23.0", "v1", 40)
    assert [started.draw(number, {}) for number in range(40)] == before
    assert [(case.pair, case.scenario.prompts) for case in cases] == [
        (case.pair, case.scenario.prompts) for case in before
    ]


@pytest.mark.parametrize(
    ("host", "runner", "more"),
    [
        ("0.23.0", "v1", set()),
        ("0.30.0rc2", "v1", {"num_speculative_tokens_per_batch_size"}),
        ("0.30.0rc2", "v2", {"num_speculative_tokens_per_batch_size", "draft_sample_method"}),
    ],
)
def test_each_option_is_drawn_where_the_host_has_it(
    monkeypatch: pytest.MonkeyPatch, host: str, runner: str, more: set[str]
) -> None:
    cases = drawn(monkeypatch, host, runner)
    assert {name for case in cases for name in case.scenario.speculative} == {
        *("method", "max_model_len", "enforce_eager", "disable_padded_drafter_batch"),
        *("use_local_argmax_reduction", "draft_tensor_parallel_size", "parallel_drafting", *more),
    }
    assert {name for case in cases for name in case.scenario.engine} > {
        *("async_scheduling", "disable_hybrid_kv_cache_manager", "enable_chunked_prefill"),
        *("gpu_memory_utilization", "tensor_parallel_size", "enable_expert_parallel"),
        "enforce_eager",
    }
    assert {case.scenario.graphs for case in cases} > {None, "FULL", "PIECEWISE"}
    assert any("enable_prefix_caching" not in case.scenario.engine for case in cases)
    assert any(case.scenario.engine["max_num_seqs"] is None for case in cases)
    assert any(is_shortened(case) for case in cases)


def test_what_vllm_refuses_itself_is_not_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    for case in drawn(monkeypatch, "0.30.0rc2", "v2"):
        engine, speculative = case.scenario.engine, case.scenario.speculative
        if engine.get("enable_chunked_prefill") is False:
            assert engine["max_num_batched_tokens"] >= engine["max_model_len"]
        if engine.get("enable_expert_parallel"):
            assert "gpt_oss" in case.scenario.model
        if "disable_padded_drafter_batch" in speculative:
            assert case.pair.method in serving_options.HEADS
            assert "async_scheduling" not in engine
        if "parallel_drafting" in speculative:
            assert case.scenario.draft == f"/masks/{case.pair.draft}"
            assert "drafting" not in case.scenario.mkv_ascend
        if "draft_tensor_parallel_size" in speculative:
            assert engine["tensor_parallel_size"] == 2
        counts = speculative.get("num_speculative_tokens_per_batch_size", [])
        assert all(1 <= one[2] <= case.scenario.num_speculative_tokens for one in counts)
        assert not counts or counts[-1][1] == engine["max_num_seqs"]

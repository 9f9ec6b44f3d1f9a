# SPDX-License-Identifier: Apache-2.0
"""Engines that find out how long a request may be: drawn, and judged by what `check` says."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from reliability import judging, scenarios, shortened, started
from reliability.scenarios import Case
from tests.support import reference
from tests.support.engine import Result


@pytest.fixture
def case(monkeypatch: pytest.MonkeyPatch) -> Case:
    monkeypatch.setattr(scenarios, "model_directory", lambda name: f"/models/{name}")
    monkeypatch.setattr(reference, "token_ids", lambda folder, text: list(range(2000)))
    drawn = started.draw(3, {})
    engine = {**drawn.scenario.engine, "num_gpu_blocks_override": 6}
    engine |= {"enable_chunked_prefill": False}
    scenario = replace(drawn.scenario, engine=engine, prompts=[[1, 2, 3], [4] * 300])
    return replace(drawn, scenario=shortened.shortened(random.Random(1), scenario))


def test_memory_alone_says_how_long(case: Case) -> None:
    assert shortened.is_shortened(case)
    engine = case.scenario.engine
    assert engine["kv_cache_memory_bytes"] in shortened.MEMORY
    assert not {"num_gpu_blocks_override", "enable_chunked_prefill"} & set(engine)


def test_prompts_go_up_to_the_length_that_check_tells(case: Case) -> None:
    cut = shortened.with_length(case, 202)
    assert [len(prompt) for prompt in cut.scenario.prompts] == [200, 200]
    assert cut.scenario.prompts[0][:4] == [1, 2, 3, 1]
    long = shortened.with_length(case, 1024)
    assert [len(prompt) for prompt in long.scenario.prompts] == [scenarios.LONGEST, 300]


@pytest.mark.parametrize(("tokens", "is_right"), [(2, True), (3, False), (1, False)])
def test_an_engine_with_another_length_is_wrong(case: Case, tokens: int, is_right: bool) -> None:
    cut = shortened.with_length(case, 202)
    cut = replace(cut, scenario=replace(cut.scenario, max_tokens=17, repeats=1))
    problems = list(judging._lengths(cut, Result(tokens=[[7] * tokens] * 2)))
    assert (not problems) is is_right


def test_without_a_plan_the_length_is_given(case: Case) -> None:
    given = started.without_memory(case)
    assert given.scenario.engine["max_model_len"] == started.UNPLANNED_LENGTH
    assert "kv_cache_memory_bytes" not in given.scenario.engine

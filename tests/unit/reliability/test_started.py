# SPDX-License-Identifier: Apache-2.0
"""What is started after `check`: a number draws it again, and what check passes must serve."""

from __future__ import annotations

import pytest

from benchmarks.matrix.running import FAILS, REFUSED, WORKS
from reliability import __main__ as program
from reliability import scenarios, started
from reliability.judging import Verdict
from tests.support import hosts, reference


@pytest.fixture(autouse=True)
def no_models(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scenarios, "model_directory", lambda name: f"/models/{name}")
    monkeypatch.setattr(reference, "token_ids", lambda folder, text: list(range(2000)))


def test_a_number_draws_the_same_again_with_options_of_caches() -> None:
    drawn = [started.draw(number, {}) for number in range(60)]
    assert drawn == [started.draw(number, {}) for number in range(60)]
    given = {name for case in drawn for name in case.scenario.engine}
    assert {"block_size", *started.MEMORY} < given
    assert {part for case in drawn for part in case.scenario.mkv_ascend} == {"layout", "drafting"}


def test_families_are_those_of_the_matrix_with_what_they_need() -> None:
    families = scenarios.families()
    drawn = [started.draw(number, {"OF": "runner"}, families) for number in range(600)]
    assert {case.pair.target for case in drawn} == {pair.target for pair in families}
    for case in drawn:
        assert dict(case.pair.engine).items() <= case.scenario.engine.items()
        assert case.scenario.environment["OF"] == "runner"
        assert ("EMULATED_NPU_TRITON" in case.scenario.environment) == case.pair.triton
        assert not case.judged
    # Those that the host computes in 16 bits alone.
    more = {"step3p5", "step3p5_mtp"} if hosts.ADAPTER.RULES.vllm == "0.30" else set()
    rounded = {case.pair.target for case in drawn if case.pair.rounded}
    assert rounded == {"deepseek_v4_fitted", *more}
    assert any(case.pair.triton for case in drawn)


@pytest.mark.parametrize(("result", "status"), [(WORKS, 0), (FAILS, 1), (REFUSED, 1)])
def test_what_check_passes_must_serve(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], result: str, status: int
) -> None:
    """Every third one is refused by check, and every other third has no plan."""
    served: list[scenarios.Case] = []

    def judge(case: scenarios.Case) -> Verdict:
        served.append(case)
        return Verdict(result, "words")

    answers = {0: ("memory", "", 0), 1: ("", "states", 0), 2: ("", "", 400)}
    monkeypatch.setattr(started, "checked", lambda case, runner: answers[case.number % 3])
    monkeypatch.setattr(started.judging, "judge", judge)
    assert program.main(["started", "--count", "20"]) == status
    assert [case.number for case in served[:4]] == [1, 2, 4, 5]
    assert len(served) == 20
    with_memory = {
        case.number % 3 for case in served if set(started.MEMORY) & set(case.scenario.engine)
    }
    assert with_memory == {2}
    said = capsys.readouterr().err
    assert "refused  0: " in said
    assert ("fails: words" in said) == (result == FAILS)
    assert ("refused by the engine: words" in said) == (result == REFUSED)

# SPDX-License-Identifier: Apache-2.0
"""Engines drawn at random: a number draws the same one again, and none is impossible."""

import random
from dataclasses import replace
from types import SimpleNamespace

import pytest

from benchmarks.matrix.running import FAILS, REFUSED, WORKS
from reliability import __main__ as program
from reliability import judging, random_models, scenarios, started
from reliability.__main__ import main
from reliability.fault_cases import DRAFT_WRITES, KINDS, LOST, draw
from reliability.judging import Verdict
from reliability.parallel_drafts import ParallelDraft
from reliability.random_configs import tiny_config
from tests.support import engine, hosts, reference
from tests.support.draft_windows import WindowedDraft
from tests.support.reference import DraftProposal

EVERY = (*scenarios.ATTENTION, *scenarios.STATES)


@pytest.fixture(autouse=True)
def no_models(monkeypatch):
    """Names for folders, and numbers for a text's tokens: nothing is trained."""
    monkeypatch.setattr(scenarios, "model_directory", lambda name: f"/models/{name}")
    monkeypatch.setattr(reference, "token_ids", lambda folder, text: list(range(2000)))


def test_what_is_drawn_can_be_served():
    for number in range(200):
        case = scenarios.draw(number, EVERY, {})
        scenario, options = case.scenario, case.scenario.engine
        assert 1 <= scenario.num_speculative_tokens <= case.pair.most_drafts
        rows = 1 + scenario.num_speculative_tokens
        assert options["max_num_batched_tokens"] >= options["max_num_seqs"] * rows
        assert all(1 <= len(one) <= options["max_model_len"] - 2 for one in scenario.prompts)
        assert all(
            size % (scenario.num_speculative_tokens + 1) == 0 for size in scenario.capture_sizes
        )


def result_of(tokens, proposals=(), drafted=2):
    return engine.Result(tokens=tokens, proposals=list(proposals), num_draft_tokens=drafted)


def verdict(monkeypatch, case, result):
    """Of an engine that gave ``result``; the target says 7 after anything, the draft 8."""
    monkeypatch.setattr(judging.engine, "run", lambda scenario: result)
    monkeypatch.setattr(judging, "model_directory", lambda name: f"/models/{name}")
    monkeypatch.setattr(judging.engine, "compared_dtype", lambda: "float32")

    def check(rows, proposals, wanted):
        wrong = [one for one in proposals if any(token != wanted for token in one.tokens)]
        return SimpleNamespace(wrong=wrong, checked=len(proposals))

    monkeypatch.setattr(
        judging.reference, "check_drafts", lambda folder, given, tie: check(None, given, 7)
    )
    monkeypatch.setattr(judging.reference, "judge", lambda rows, given, tie: check(rows, given, 8))
    monkeypatch.setattr(judging, "drafter_of", lambda *_: SimpleNamespace(rows=None))
    return judging.judge(case)


def test_a_wrong_token_a_lost_one_and_a_wrong_draft_are_failures(monkeypatch):
    case = next(
        case
        for case in (scenarios.draw(number, EVERY, {}) for number in range(100))
        if case.judged and case.scenario.max_tokens == 17 and case.scenario.repeats == 1
    )
    longest = case.scenario.engine["max_model_len"]
    right = [[7] * min(17, longest - len(prompt)) for prompt in case.scenario.prompts]
    draft = DraftProposal([1, 2, 3], [8, 8])
    assert verdict(monkeypatch, case, result_of(right, [draft])).result == WORKS
    other = [[*right[0][:-1], 6], *right[1:]]
    assert verdict(monkeypatch, case, result_of(other, [draft])).result == FAILS
    short = [right[0][:-1], *right[1:]]
    assert verdict(monkeypatch, case, result_of(short, [draft])).result == FAILS
    wrong = DraftProposal([1, 2, 3], [8, 9])
    assert verdict(monkeypatch, case, result_of(right, [wrong])).result == FAILS
    assert verdict(monkeypatch, case, result_of(right, drafted=0)).result == FAILS
    # Past the longest context there is no position for the last one.
    last = DraftProposal([1] * (longest - 1), [8, 9])
    assert verdict(monkeypatch, case, result_of(right, [last])).result == WORKS
    # Nor is there one past the longest context of the draft.
    shorter = replace(case.scenario, speculative={**case.scenario.speculative, "max_model_len": 64})
    of_draft = replace(case, scenario=shorter)
    for length, tokens, result in ((63, [8, 9], WORKS), (64, [9], WORKS), (62, [8, 9], FAILS)):
        behind = [draft, DraftProposal([1] * length, tokens)]
        assert verdict(monkeypatch, of_draft, result_of(right, behind)).result == result


def test_a_draft_is_judged_as_it_was_asked_to_draft(monkeypatch):
    monkeypatch.setattr(judging, "model_directory", lambda name: f"/models/{name}")
    monkeypatch.setattr(judging, "drafter_of", lambda *_: "alone")
    case = scenarios.draw(1, EVERY, {})

    def drafter(**fields):
        return judging._drafter(replace(case, scenario=replace(case.scenario, **fields)))

    assert drafter() == "alone"
    assert drafter(mkv_ascend={"drafting": {"window": 128}}) == WindowedDraft("alone", 128)
    assert isinstance(drafter(speculative={"parallel_drafting": True}), ParallelDraft)


def test_a_known_refusal_is_no_failure_and_any_other_end_is(monkeypatch):
    case = scenarios.draw(1, EVERY, {})

    def fail(text):
        def run(scenario):
            raise engine.EngineFailedError(text)

        monkeypatch.setattr(judging.engine, "run", run)
        return judging.judge(case).result

    begun = "Traceback (most recent call last)\n"
    known = "whose layers hand on several states per token where a head takes one"
    assert fail(f"{begun}ValueError: {known}") == REFUSED
    assert fail(f"{begun}ValueError: something else") == FAILS
    assert fail("Killed") == FAILS


def test_the_program_ends_with_1_where_a_case_fails(monkeypatch, capsys):
    monkeypatch.setattr(program, "require_runner", lambda runner: None)
    results = iter([WORKS, FAILS])
    monkeypatch.setattr(judging, "judge", lambda case: judging.Verdict(next(results), "a reason"))
    assert program.main(["engines", "--count", "1", "--pairs", "states"]) == 0
    assert program.main(["engines", "--first", "3", "--count", "1", "--json"]) == 1
    told = capsys.readouterr()
    assert '"reason": "a reason"' in told.out
    assert "1 cases, 1 failed" in told.err


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


SEEDS = range(8)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("family", ["dots1", "nemotron_h"])
def test_no_window_where_no_layer_has_one(family, seed):
    """vLLM would give it to every layer."""
    assert tiny_config(family, random.Random(seed)).sliding_window is None


@pytest.mark.parametrize("seed", SEEDS)
def test_layers_of_gpt_oss_have_the_order_that_vllm_gives_them(seed):
    types = tiny_config("gpt_oss", random.Random(seed)).layer_types
    windows = [index % 2 == 0 for index in range(len(types))]
    assert [one == "sliding_attention" for one in types] == windows


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("family", ["gemma3_text", "gemma4_text", "lfm2", "granitemoehybrid"])
def test_each_kind_of_layer_is_there(family, seed):
    assert len(set(tiny_config(family, random.Random(seed)).layer_types)) == 2


def test_a_model_that_is_not_tiny_takes_no_memory(tmp_path, monkeypatch):
    """Classes of pictures and text keep published sizes: 34 billion weights in one of them."""
    monkeypatch.setattr(random_models, "MOST_WEIGHTS", 1000)
    monkeypatch.setattr(random_models, "fill", lambda *_: pytest.fail("it was made"))
    with pytest.raises(ValueError, match=r"llama has no tiny form here: .*\d{4} weights"):
        random_models.write_random_model(tmp_path, "llama", "a seed")


@pytest.mark.parametrize("kind", KINDS)
def test_each_fault_of_a_kind_comes_in_turn_and_a_number_draws_the_same_again(kind):
    faults = KINDS[kind]
    drawn = [draw(3, number, [kind], ranks=2) for number in range(2 * len(faults))]
    assert [case.fault for case in drawn] == [*faults, *faults]
    assert drawn == [draw(3, number, [kind], ranks=2) for number in range(2 * len(faults))]


def test_writes_of_the_drafts_caches_are_lost_several_times_in_a_row():
    cases = [draw(0, number, ["stale"], ranks=1) for number in range(50)]
    assert {(case.fault, case.operator, case.victim) for case in cases} == {
        (LOST, DRAFT_WRITES, "engine")
    }
    assert all(case.is_of_device and not case.is_deadly and case.times > 1 for case in cases)
    assert len({(case.launch, case.times) for case in cases}) > 40
    assert f"at launch {cases[0].launch} and {cases[0].times - 1} more" in cases[0].describe()


@pytest.mark.parametrize("more", [["--pair", "dense"], ["--pair", "mla", "--no-draft"]])
def test_stale_caches_of_another_pair_are_refused(more, capsys):
    assert main(["faults", "--kinds", "stale", *more]) == 2
    assert "serve it: --pair mla" in capsys.readouterr().err


def test_a_fault_of_the_device_is_of_one_rank():
    """Which one matters: vLLM waits for the answer of the first."""
    drawn = [draw(0, number, ["device"], ranks=2) for number in range(40)]
    assert {case.process for case in drawn} == {"Worker_TP0", "Worker_TP1"}
    assert " worker Worker_TP" in drawn[0].describe()
    stock = [draw(0, number, ["device"], ranks=2, of_stock=True) for number in range(40)]
    unheard = {(case.fault, case.process) for case in stock if case.is_unheard}
    assert unheard == {("error", "Worker_TP1"), ("memory", "Worker_TP1")}
    assert all(case.may_be_deadly and not case.is_deadly for case in stock if case.is_unheard)
    # With the plugin such a rank ends, once it notices.
    assert not any(case.is_unheard for case in drawn)
    by_chance = {(case.fault, case.process) for case in drawn if case.may_be_deadly}
    assert by_chance == {("error", "Worker_TP1")}
    assert {case.fault for case in drawn if case.is_deadly} == {"error", "memory", "kill"}
    assert {draw(0, number, ["device"], ranks=1).process for number in range(40)} == {""}
    at_start = [draw(0, number, ["start"], ranks=2) for number in range(40)]
    assert {case.process for case in at_start} == {""}

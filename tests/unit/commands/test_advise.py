# SPDX-License-Identifier: Apache-2.0
"""``mkv-ascend advise``: what it makes of vLLM's answer, and one line for bad input.

``tests/emulated/platform/test_advise.py`` asks vLLM.
"""

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic_core import to_jsonable_python

from mkv_ascend import cli
from mkv_ascend.adapters.installed import rules
from mkv_ascend.advice.work import Cache, LayerWork, ModelWork, Weights, Works
from mkv_ascend.commands import advise, host_process

CONFIGS = Path(__file__).resolve().parents[2] / "data" / "configs"
PAIR = (str(CONFIGS / "Llama-3.1-8B"), "--method", "eagle3", "--draft")
EAGLE = str(CONFIGS / "eagle3-8x128")
NAMES = ("eagle3 eagle3-8x128", "draft_model Qwen3-0.6B")
HEAD = Weights(525_000_000, 1_050_000_000)


def of_layers(number: int, millions: int) -> ModelWork:
    """So many layers of so many parameters each, in 16 bits."""
    weights = Weights(millions * 10**6, 2 * millions * 10**6)
    layer = LayerWork(weights, (Cache(4096, 16384),), number=number)
    return ModelWork((layer,), HEAD)


TARGET = of_layers(32, 218)
DRAFTS = {"eagle3": of_layers(1, 200), "draft_model": of_layers(28, 16), "mtp": of_layers(1, 300)}


@pytest.fixture(autouse=True)
def judged(monkeypatch: pytest.MonkeyPatch) -> None:
    """What vLLM says of each pair; ``tests/emulated/platform/test_judged_commands.py`` asks it."""

    def answer(question: Any, *_: Any) -> dict[str, Any]:
        words = question["words"]
        method, models = "", {"target": words[0]}
        if "--speculative-config" in words:
            speculation = json.loads(words[words.index("--speculative-config") + 1])
            method = speculation["method"]
            models["draft"] = speculation.get("model", words[0])
        ahead = method not in rules().in_turn_by_default or "--async-scheduling" in words
        return {
            "answer": "served",
            "models": models,
            "async_scheduling": ahead and "--no-async-scheduling" not in words,
            "weight_bytes": 80 << 30 if "DeepSeek" in words[0] else 16 << 30,
            "bytes_per_block": 2 << 20,
            "request_bytes": 64 << 20,
            "works": to_jsonable_python(Works(TARGET, DRAFTS.get(method))),
            "untold": "",
        }

    monkeypatch.setattr("mkv_ascend.commands.host_process.ask", answer)


def test_a_pair_that_is_refused_is_not_predicted(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    refusal = {"code": "vocabulary", "asked": "a", "possible": "b", "change": "c"}
    answer = {"answer": "refused", "refusals": [refusal]}
    monkeypatch.setattr("mkv_ascend.commands.host_process.ask", lambda *_: answer)
    assert cli.main(["advise", *PAIR, EAGLE, "--acceptance", "0.7"]) == 1
    errors = capsys.readouterr().err
    assert errors == (
        "mkv-ascend advise: this cannot be served [vocabulary]: a. Possible: b. Change: c.\n"
    )


def test_what_no_rule_refuses_and_no_prediction_knows(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Caches of which an indexer picks tokens: served, and in three parts not predicted."""
    answer = {"answer": "served", "works": None, "untold": "caches of kind x tell nothing"}
    monkeypatch.setattr("mkv_ascend.commands.host_process.ask", lambda *_: answer)
    assert cli.main(["advise", *PAIR, EAGLE, "--acceptance", "0.7"]) == 2
    errors = capsys.readouterr().err
    assert "is not told: caches of kind x tell nothing. Possible: models whose" in errors


def test_what_is_judged_is_the_pair_on_that_chip(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(
        "mkv_ascend.commands.host_process.ask",
        lambda question, *_: asked.append(question) or {"answer": "unreadable", "problem": "x"},
    )
    options = ["--acceptance", "0.7", "-tp", "2", "--chip", "a3", "-k", "3"]
    assert cli.main(["advise", *PAIR, EAGLE, *options]) == 2
    (question,) = asked
    assert question["device"]["generation"] == "A3"
    assert question["words"][:3] == [PAIR[0], "--tensor-parallel-size", "2"]
    speculation = json.loads(question["words"][-1])
    assert speculation == {"method": "eagle3", "num_speculative_tokens": 3, "model": EAGLE}


def advise_json(capsys: pytest.CaptureFixture[str], *options: str) -> dict[str, Any]:
    assert cli.main(["advise", "--json", *options]) == 0
    plain: dict[str, Any] = json.loads(capsys.readouterr().out)
    return plain


def test_an_answer_in_json_and_in_words(capsys: pytest.CaptureFixture[str]) -> None:
    plain = advise_json(capsys, *PAIR, EAGLE, "--acceptance", "0.7", "--batch", "1,64")
    assert plain["kind"] == "prediction"
    assert plain["error_band"] > 0
    for batch in plain["batches"]:
        speeds = [one["speed_up"] for one in batch["by_tokens"]]
        assert speeds[batch["best_tokens"] - 1] == max(speeds)
        assert batch["shown"]["speed_up_from"] < batch["shown"]["speed_up_to"]
    assert plain["memory"]["requests_at_once"] > 1
    assert cli.main(["advise", *PAIR, EAGLE, "--acceptance", "0.7"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("predicted, not measured: Llama-3.1-8B + eagle3-8x128")
    assert "requests of 4096 tokens at once" in text


def test_several_drafts_are_compared(capsys: pytest.CaptureFixture[str]) -> None:
    drafts = (f"eagle3={EAGLE}", str(CONFIGS / "Qwen3-0.6B"))
    asked = [PAIR[0], *(word for draft in drafts for word in ("--draft", draft))]
    options = ["--method", "suffix", "--batch", "1,64", "--tokens", "3"]
    plain = advise_json(capsys, *asked, *options[2:], "--acceptance", "0.8,0.2")
    alone = [
        advise_json(capsys, *PAIR, EAGLE, *options[2:], "--acceptance", "0.8"),
        advise_json(capsys, PAIR[0], *asked[3:], *options[2:], "--acceptance", "0.2"),
    ]
    assert [{"name": name, **one} for name, one in zip(NAMES, alone, strict=True)] == plain[
        "candidates"
    ]
    assert [best["name"] for best in plain["best"]] == [NAMES[0]] * 2
    # A method without a draft is one more, after the drafts that name their own.
    asked[3:] = ["--draft", f"draft_model={drafts[1]}"]
    third = advise_json(capsys, *asked, *options, "--length", "1.2,1.3,3.5")
    assert [one["method"] for one in third["candidates"]] == ["eagle3", "draft_model", "suffix"]
    assert [best["name"] for best in third["best"]] == ["suffix"] * 2
    losing = advise_json(capsys, *asked, *options, "--acceptance", "0")
    assert [(best["name"], best["tokens"]) for best in losing["best"]] == [(None, 0)] * 2
    assert cli.main(["advise", *asked, *options, "--acceptance", "0"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-2:] == [
        f"best at batch {batch}: no draft: each is predicted to lose" for batch in (1, 64)
    ]


def test_one_that_is_refused_does_not_hide_the_others(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    served = host_process.ask
    refusal = {"code": "vocabulary", "asked": "a", "possible": "b", "change": "c"}

    def answer(question: Any, *more: Any) -> Any:
        if "LFM2" in question["words"][-1]:
            return {"answer": "refused", "refusals": [refusal]}
        return served(question, *more)

    monkeypatch.setattr(host_process, "ask", answer)
    drafts = ("--draft", str(CONFIGS / "LFM2-1.2B"), "--draft", f"eagle3={EAGLE}")
    asked = (PAIR[0], *drafts, "--acceptance", "0.7", "--batch", "8")
    refused, told = advise_json(capsys, *asked)["candidates"]
    assert refused["refused"].startswith("this cannot be served [vocabulary]: a.")
    assert told["batches"]
    assert cli.main(["advise", *asked]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("not predicted: draft_model LFM2-1.2B: ")
    assert lines[-1].startswith("best at batch 8: eagle3 eagle3-8x128 with K = ")
    assert cli.main(["advise", *asked[:3], *asked[1:3], *asked[5:]]) == 1
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_nothing_accepted_is_a_loss_and_no_token_is_best(
    capsys: pytest.CaptureFixture[str],
) -> None:
    plain = advise_json(capsys, *PAIR, EAGLE, "--acceptance", "0")
    assert [batch["best_tokens"] for batch in plain["batches"]] == [0, 0, 0]
    assert all("predicted to lose" in batch["verdict"] for batch in plain["batches"])


def result_of_bench(path: Path, **changes: Any) -> str:
    result = {"completed": 10, "total_input_tokens": 30_000, "total_output_tokens": 20_000}
    result |= {"max_concurrency": 8, "mean_tpot_ms": 100.0, **changes}
    path.write_text(json.dumps(result))
    return str(path)


def plain_ms(answer: dict[str, Any]) -> float:
    shown = answer["batches"][0]["shown"]
    return float(shown["plain_ms"] + shown["plain_host_ms"])


def test_a_users_result_moves_every_step(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    options = [*PAIR, EAGLE, "--acceptance", "0.7", "--batch", "8", "--tokens", "3"]
    before = advise_json(capsys, *options)
    slow = result_of_bench(tmp_path / "slow.json")
    after = advise_json(capsys, *options, "--calibrate", slow)
    # 4,000 tokens of each request were measured, and 4,096 are predicted.
    assert plain_ms(after) == pytest.approx(100, abs=0.2)
    moved = plain_ms(after) - plain_ms(before)
    hosts = [answer["batches"][0]["shown"]["host_ms"] for answer in (before, after)]
    assert hosts[1] - hosts[0] == pytest.approx(moved, abs=0.01)
    fast = result_of_bench(tmp_path / "fast.json", mean_tpot_ms=0.1)
    fastest = advise_json(capsys, *options, "--calibrate", fast)
    assert fastest["batches"][0]["shown"]["plain_host_ms"] == 0


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"max_concurrency": None}, "max_concurrency is None"),
        ({"mean_tpot_ms": -1}, "mean_tpot_ms is -1"),
        ({"spec_decode_acceptance_length": 2.5}, "measured with a draft"),
    ],
)
def test_a_result_that_does_not_tell_is_one_line(
    changes: dict[str, Any], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = result_of_bench(tmp_path / "result.json", **changes)
    assert cli.main(["advise", *PAIR, EAGLE, "--acceptance", "0.7", "--calibrate", path]) == 2
    errors = capsys.readouterr().err
    assert words in errors
    assert len(errors.splitlines()) == 1


def test_memory_that_cannot_be_planned_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    target = str(CONFIGS / "DeepSeek-V3")
    plain = advise_json(capsys, target, "--method", "mtp", "--length", "1.8", "--tokens", "1")
    assert plain["memory"]["unplanned"].startswith("the weights do not fit")
    assert "requests_at_once" not in plain["memory"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ((PAIR[0], "--acceptance", "0.5"), "give --draft DIR, or --method"),
        ((*PAIR[:3], "--acceptance", "0.5"), "needs a draft"),
        ((PAIR[0], "--method", "suffix", "--draft", EAGLE, "--length", "2"), "has no draft"),
        ((*PAIR, EAGLE, "--length", "2"), "needs --tokens K"),
        ((*PAIR, EAGLE, "--method", "mtp", "--length", "2"), "which of the methods eagle3, mtp"),
        ((*PAIR, EAGLE, "--acceptance", "0.5,0.6"), "2 values for 1 candidates"),
        ((*PAIR, EAGLE, "--length", "9", "--tokens", "3"), "yields 1 to 4 tokens"),
    ],
)
def test_bad_input_is_one_line(
    options: tuple[str, ...], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["advise", *options]) == 2
    errors = capsys.readouterr().err
    assert words in errors
    assert len(errors.splitlines()) == 1


@pytest.mark.parametrize(
    "options",
    [
        ("--acceptance", "1.1"),
        ("--acceptance", "nan"),
        ("--acceptance", "0.5", "--chip", "b7"),
        ("--acceptance", "0.5", "--tokens", "16"),
        ("--acceptance", "0.5", "--batch", "1,0"),
        (),
    ],
)
def test_options_out_of_range_are_refused(
    options: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        cli.main(["advise", *PAIR, EAGLE, *options])
    assert stopped.value.code == 2
    assert "error: " in capsys.readouterr().err.splitlines()[-1]


def test_how_steps_are_scheduled_is_vllms_default_of_the_method(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Without a draft ahead; with one as the host decides, and as the user asks."""
    target = str(CONFIGS / "Llama-3.1-8B")
    by_model = (target, "--draft", str(CONFIGS / "Qwen3-0.6B"), "--acceptance", "0.7")
    waits = "draft_model" in rules().in_turn_by_default
    names = ("async_scheduling_without", "async_scheduling")

    def told(*words: str) -> tuple[list[bool], str]:
        answer = advise_json(capsys, *words)
        return [answer[name] for name in names], "\n".join(advise.lines(answer))

    ahead, text = told(*by_model)
    assert ahead == [True, not waits]
    assert ("--async-scheduling schedules each" in text) == waits
    assert told(*by_model, "--async-scheduling")[0] == [True, True]
    assert told(*by_model, "--no-async-scheduling")[0] == [False, False]
    ahead, text = told(target, "--method", "suffix", "--acceptance", "0.4")
    assert ahead == [True, False]
    assert "vLLM does not schedule method suffix ahead" in text
    words = ["advise", target, "--method", "suffix", "--acceptance", "0.4", "--async-scheduling"]
    assert cli.main(words) == 2
    assert "refuses --async-scheduling with method suffix" in capsys.readouterr().err

# SPDX-License-Identifier: Apache-2.0
"""``mkv-ascend advise``: sizes of published models, its answer, and one line for bad input."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import transformers  # noqa: F401  So that defaults of configs are asked for in this process.

from mkv_ascend import cli
from mkv_ascend.adapters.installed import rules
from mkv_ascend.advice.work import Experts
from mkv_ascend.checks.model_config import read_model
from mkv_ascend.checks.model_work import draft_work, target_work
from mkv_ascend.commands import advise_text
from tests.support.predictors import write_config

CONFIGS = Path(__file__).resolve().parents[2] / "data" / "configs"
PAIR = (str(CONFIGS / "Llama-3.1-8B"), "--method", "eagle3", "--draft")
EAGLE = str(CONFIGS / "eagle3-8x128")
NAMES = ("eagle3 eagle3-8x128", "draft_model Qwen3-0.6B")


@pytest.fixture(autouse=True)
def judged(monkeypatch: pytest.MonkeyPatch) -> None:
    """What vLLM says of each pair; ``tests/emulated/platform/test_judged_commands.py`` asks it."""

    def answer(question: Any, *_: Any) -> dict[str, Any]:
        words = question["words"]
        method = ""
        if "--speculative-config" in words:
            method = json.loads(words[words.index("--speculative-config") + 1])["method"]
        ahead = method not in rules().in_turn_by_default or "--async-scheduling" in words
        return {
            "answer": "served",
            "async_scheduling": ahead and "--no-async-scheduling" not in words,
            "weight_bytes": None,
            "bytes_per_block": 2 << 20,
            "request_bytes": 64 << 20,
            "unplanned": "",
        }

    monkeypatch.setattr("mkv_ascend.commands.host_process.ask", answer)


def test_a_pair_that_is_refused_is_not_predicted(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    refusal = {"code": "vocabulary", "asked": "a", "possible": "b", "change": "c"}
    answer = {"answer": "refused", "refusals": [refusal]}
    monkeypatch.setattr("mkv_ascend.commands.host_process.ask", lambda *_: answer)
    assert cli.main(["advise", *PAIR, EAGLE, "--acceptance", "0.7"]) == 2
    assert "this cannot be served [vocabulary]: a. Possible: b." in capsys.readouterr().err


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


@pytest.mark.parametrize(
    ("name", "billions", "bits"),
    [
        ("Llama-3.1-8B", 8.03, None),
        ("Qwen3-0.6B", 0.596, None),
        ("gpt-oss-20b", 20.9, 16),
        ("gpt-oss-120b", 116.8, 16),
        ("DeepSeek-V2-Lite", 15.7, None),
        ("DeepSeek-V3", 671, None),
        ("gemma-3-27b", 27.0, None),
        ("Qwen3-Next-80B-A3B", 79.7, 16),
    ],
)
def test_parameters_are_those_of_the_model_cards(
    name: str, billions: float, bits: float | None
) -> None:
    """Totals that the publishers state; norms, biases and towers are below 2 %."""
    found = target_work(read_model(CONFIGS / name), 1, bits).held_bytes / 2 / 1e9
    assert found == pytest.approx(billions, rel=0.02)


def test_weights_of_single_layers_by_hand() -> None:
    """From the shapes of the published checkpoints, matrix by matrix."""
    lite = target_work(read_model(CONFIGS / "DeepSeek-V2-Lite"), 1)
    latent = 2048 * 16 * (128 + 64) + 2048 * (512 + 64) + 512 * 16 * (128 + 128) + 16 * 128 * 2048
    assert lite.layers[0].weights == latent + 3 * 2048 * 10944
    assert lite.layers[1].weights == latent + 2048 * 64 + 3 * 2048 * 2 * 1408
    assert (lite.layers[1].cache, lite.layers[1].pair_flop) == (576, 2 * 16 * (576 + 512))
    following = target_work(read_model(CONFIGS / "Qwen3-Next-80B-A3B"), 1, 16)
    shared = 2048 * 512 + 3 * 2048 * 512
    delta = 2048 * (2048 + 2048 + 4096 + 4096) + 2048 * (32 + 32) + 4096 * 2048
    assert following.layers[0].weights == delta + shared
    assert following.layers[0].state == 2 * 32 * 128 * 128
    attention = 2048 * 2 * 16 * 256 + 2 * 2048 * 2 * 256 + 16 * 256 * 2048
    assert following.layers[3].weights == attention + shared


def test_weights_of_layers_whose_values_are_smaller_than_their_keys(tmp_path: Path) -> None:
    """MiMo-V2: 4 heads of queries, 2 of keys, 4 in windows; experts and a predictor in windows."""
    write_config("mimo_v2", tmp_path)
    config = read_model(tmp_path)
    full, window = target_work(config, 1).layers
    both, mlp, router = 192 + 128, 3 * 128 * 256, 128 * 8
    assert (full.weights, full.experts) == (128 * (4 + 2) * both + mlp, None)
    assert window.weights == 128 * (4 + 4) * both + router
    assert window.experts == Experts(8, 2, 3 * 128 * 64)
    assert (full.window, window.window) == (0, 32)
    assert (full.cache, window.cache) == (2 * both, 4 * both)
    assert full.pair_flop == window.pair_flop == 2 * 4 * both
    (predictor,) = draft_work("mtp", config, config, 1).layers
    assert (predictor.weights, predictor.experts) == (128 * (4 + 4) * both + mlp, None)


def test_ranks_share_the_weights_and_a_draft_of_one_layer_is_small() -> None:
    target = read_model(CONFIGS / "Llama-3.1-8B")
    whole, share = target_work(target, 1), target_work(target, 8)
    assert share.held_bytes == pytest.approx(whole.held_bytes / 8)
    assert sum(layer.communication for layer in whole.layers) == 0
    draft = draft_work("eagle3", target, read_model(Path(EAGLE)), 1)
    assert len(draft.layers) == 1
    assert draft.held_bytes < whole.held_bytes / 8


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


def test_one_that_cannot_be_predicted_does_not_hide_the_others(
    capsys: pytest.CaptureFixture[str],
) -> None:
    drafts = ("--draft", str(CONFIGS / "LFM2-1.2B"), "--draft", f"eagle3={EAGLE}")
    asked = (PAIR[0], *drafts, "--acceptance", "0.7", "--batch", "8")
    refused, told = advise_json(capsys, *asked)["candidates"]
    assert "do not tell the work of a lfm2 model" in refused["refused"]
    assert told["batches"]
    assert cli.main(["advise", *asked]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("not predicted: draft_model LFM2-1.2B: ")
    assert lines[-1].startswith("best at batch 8: eagle3 eagle3-8x128 with K = ")
    assert cli.main(["advise", *asked[:3], *asked[1:3], *asked[5:]]) == 2
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
        (("/nowhere", "--method", "suffix", "--acceptance", "0.5"), "no file /nowhere"),
        ((PAIR[0], "--acceptance", "0.5"), "give --draft DIR, or --method"),
        ((*PAIR[:3], "--acceptance", "0.5"), "needs a draft"),
        ((PAIR[0], "--method", "suffix", "--draft", EAGLE, "--length", "2"), "has no draft"),
        ((*PAIR, EAGLE, "--length", "2"), "needs --tokens K"),
        ((*PAIR, EAGLE, "--method", "mtp", "--length", "2"), "which of the methods eagle3, mtp"),
        ((*PAIR, EAGLE, "--acceptance", "0.5,0.6"), "2 values for 1 candidates"),
        ((*PAIR, EAGLE, "--length", "9", "--tokens", "3"), "yields 1 to 4 tokens"),
        ((*PAIR, EAGLE, "--acceptance", "0.5", "--tp", "3"), "one must divide the other"),
        (
            (str(CONFIGS / "LFM2-1.2B"), "--method", "suffix", "--acceptance", "0.5"),
            "do not tell the work of a lfm2 model",
        ),
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
        return [answer[name] for name in names], "\n".join(advise_text.lines(answer))

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

# SPDX-License-Identifier: Apache-2.0
"""Commands of published models and mistakes: what check says, and what vLLM itself says of them.

``tests/data/commands.json`` has the words behind ``vllm serve``. ``draft:METHOD:K:NAME`` stands for
``--speculative-config``, ``{NAME}`` and a first word for a published model's folder.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.published_models import PUBLISHED

pytestmark = [pytest.mark.slow]
TABLE = json.loads((Path(__file__).resolve().parents[2] / "data" / "commands.json").read_text())
SERVED, UNREADABLE, REFUSED = (TABLE[kind] for kind in ("served", "unreadable", "refused"))
DEVICE = {
    "count": 8,
    "count_is_known": True,
    "memory_bytes": 64 << 30,
    "generation": "A2",
    "source": "a test",
}
ROOM = {"EMULATED_NPU_DEVICES": "64", "EMULATED_NPU_MEMORY": "64GiB"}
HANG_SECONDS = 3600
Answers = dict[str, dict[str, Any]]


def whole(word: str, folders: dict[str, str]) -> list[str]:
    """A word of the table as ``vllm serve`` has it."""
    if word.startswith("draft:"):
        _, method, tokens, model = word.split(":")
        given: dict[str, Any] = {"method": method, "num_speculative_tokens": int(tokens)}
        if model:
            given["model"] = folders[model]
        return ["--speculative-config", json.dumps(given)]
    for name, folder in folders.items():
        word = word.replace("{" + name + "}", folder)
    return [folders.get(word, word)]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    found = {}
    for name, values in PUBLISHED.items():
        folder = tmp_path_factory.mktemp("published") / name
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(values), encoding="utf-8")
        found[name] = str(folder)
    return found


def asked(questions: list[dict[str, Any]]) -> list[dict[str, Any]]:
    variables = {**os.environ, **ROOM, "HF_HUB_OFFLINE": "1", "VLLM_LOGGING_LEVEL": "ERROR"}
    variables["EMULATED_NPU_FLOAT32_COMPUTE"] = "0"
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.judged_commands"],
        input=json.dumps(questions),
        env=variables,
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
        check=False,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("answer: ")]
    assert len(lines) == len(questions), done.stderr[-3000:]
    return [json.loads(line.removeprefix("answer: ")) for line in lines]


def questions_and_answers(
    rows: dict[str, list[str]], folders: dict[str, str]
) -> tuple[Answers, Answers]:
    """What check says of each, and what ``create_engine_config`` says where no rule is asked."""
    questions = [
        {
            "words": [part for word in words for part in whole(word, folders)],
            "device": DEVICE,
            "plan": False,
        }
        for words in rows.values()
    ]
    both = asked([*questions, *({**question, "raw": True} for question in questions)])
    names = list(rows)
    return (
        dict(zip(names, both[: len(names)], strict=True)),
        dict(zip(names, both[len(names) :], strict=True)),
    )


@pytest.fixture(scope="module")
def answers(folders: dict[str, str]) -> tuple[Answers, Answers]:
    rows = {**SERVED, **{name: row[0] for name, row in (UNREADABLE | REFUSED).items()}}
    return questions_and_answers(rows, folders)


@pytest.mark.parametrize("name", SERVED)
def test_what_is_served_is_told_with_its_memory(
    name: str, answers: tuple[Answers, Answers]
) -> None:
    found = answers[0][name]
    assert found["answer"] == "served", found
    assert found["unplanned"] == ""
    assert found["requests"] >= 1
    assert 0 < found["weight_bytes"] < 64 << 30


@pytest.mark.parametrize("name", UNREADABLE)
def test_what_cannot_be_read_is_said_in_vllms_words(
    name: str, answers: tuple[Answers, Answers]
) -> None:
    found = answers[0][name]
    assert found["answer"] == "unreadable"
    assert UNREADABLE[name][1] in found["problem"]


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_served_is_refused(name: str, answers: tuple[Answers, Answers]) -> None:
    _, code, says = REFUSED[name]
    found = answers[0][name]
    assert found["answer"] == "refused", found
    assert not code or code in [refusal["code"] for refusal in found["refusals"]]
    assert says in json.dumps(found["refusals"], ensure_ascii=False)
    assert "Traceback" not in json.dumps(found)


@pytest.mark.parametrize("name", [*SERVED, *UNREADABLE, *REFUSED])
def test_no_command_that_the_host_refuses_is_served(
    name: str, answers: tuple[Answers, Answers]
) -> None:
    """And where a rule of ours refuses, it is no word of the host's that is told."""
    ours, theirs = answers[0][name], answers[1][name]
    if theirs["answer"] != "served":
        assert ours["answer"] == theirs["answer"]
    elif ours["answer"] == "refused":
        assert "host" not in [refusal["code"] for refusal in ours["refusals"]]


def test_weights_are_those_of_the_model_cards(answers: tuple[Answers, Answers]) -> None:
    """Parameters that the publishers state, in 16 bits, over the ranks of the command."""
    billions = {"Qwen3-0.6B": (0.596, 1), "Llama-3.1-8B": (8.03, 1), "DeepSeek-V2-Lite": (15.7, 1)}
    billions |= {"Mixtral": (46.7, 4), "Qwen3-Next": (79.7, 4)}
    for name, (number, ranks) in billions.items():
        found = answers[0][name]["weight_bytes"] * ranks / 2e9
        assert found == pytest.approx(number, rel=0.03), name

# SPDX-License-Identifier: Apache-2.0
"""Commands of published models, judged one after another by one process.

In the words of ``tests/data/commands.json``: those behind ``vllm serve``, where
``draft:METHOD:K:NAME`` stands for ``--speculative-config``, and ``{NAME}`` or a first word for a
published model's folder.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mkv_ascend.adapters.questions import MARK
from tests.support.judging import Judges
from tests.support.models import padded_rows
from tests.support.tiny_models.tokenizer import build_tokenizer

PUBLISHED: dict[str, dict[str, Any]] = json.loads(
    (Path(__file__).parents[1] / "data" / "published_models.json").read_text(encoding="utf-8")
)
"""Name on the hub -> config.json as it was published, as far as vLLM reads it."""
DEVICE = {
    "count": 8,
    "count_is_known": True,
    "memory_bytes": 64 << 30,
    "generation": "A2",
    "source": "a test",
}
QUIETLY = {"HF_HUB_OFFLINE": "1", "VLLM_LOGGING_LEVEL": "ERROR"}
SECONDS = 600
WITH_TOKENIZERS = ("Qwen2.5-72B-Instruct", "Qwen2.5-1.5B-Instruct", "Llama-3.2-1B-Instruct")
"""Models whose tokenizers are compared. They are not the published ones: the last has its own."""
ROOM = {"EMULATED_NPU_DEVICES": "64", "EMULATED_NPU_MEMORY": "64GiB"}


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
    for name in WITH_TOKENIZERS:
        build_tokenizer(64).save_pretrained(found[name])
    padded_rows.other_words(Path(found["Llama-3.2-1B-Instruct"]))
    return found


class Judge:
    """Asks each question once, of a process that has imported vLLM."""

    def __init__(self, folders: dict[str, str]) -> None:
        self._folders = folders
        self._known: dict[tuple[str, bool], dict[str, Any]] = {}
        self._judges = Judges()
        self._variables = {**os.environ, **ROOM, **QUIETLY, "EMULATED_NPU_FLOAT32_COMPUTE": "0"}

    def ask(self, words: list[str], *, raw: bool = False) -> dict[str, Any]:
        """What check says; ``raw``: what ``create_engine_config`` says where no rule is asked."""
        key = (json.dumps(words), raw)
        if key not in self._known:
            given = [part for word in words for part in whole(word, self._folders)]
            question = {"words": given, "device": DEVICE, "plan": False, "raw": raw}
            done = self._judges.run_module(
                "tests.support.judged_commands", json.dumps(question), self._variables, SECONDS
            )
            assert MARK in done.stdout, done.stderr[-3000:]
            self._known[key] = json.loads(done.stdout.rpartition(MARK)[2])
        return self._known[key]

    def stop(self) -> None:
        """End the process."""
        self._judges.stop()


@pytest.fixture(scope="module")
def judge(folders: dict[str, str]) -> Iterator[Judge]:
    judge = Judge(folders)
    yield judge
    judge.stop()

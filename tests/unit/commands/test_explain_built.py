# SPDX-License-Identifier: Apache-2.0
"""``mkv-ascend explain`` of models that vLLM has to build; what it builds is written down here.

tests/emulated/test_explain.py lets vLLM build them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from mkv_ascend import cli
from mkv_ascend.commands import explain_built
from mkv_ascend.commands.explain_process import ProcessError
from mkv_ascend.layout.demand import Holding, Span
from mkv_ascend.layout.kind import Role
from mkv_ascend.layout.serialization import to_plain
from tests.unit.layout.layouts import keys_and_values, states

CONFIGS = Path(__file__).resolve().parents[2] / "data" / "configs"


def layer(layout: Any, holding: Holding, backend: str, planned: bool = True) -> dict[str, Any]:
    plain = {"layout": to_plain(layout), "holding": to_plain(holding)}
    return {**plain, "backend": backend, "planned": planned}


ANSWER = {
    "layers": [
        layer(states("t.0", (3, 64), (8, 16, 16)), Holding(Span.STATE, 1), "mamba_2"),
        layer(keys_and_values("t.1", 2, 64, block=1024), Holding(Span.ALL), "fused"),
        layer(
            keys_and_values("d.0", 1, 64, block=1024, role=Role.DRAFT), Holding(Span.ALL), "fused"
        ),
    ],
    "tokens": 4096,
    "tokens_per_step": 4,
    "dtype": "bfloat16",
    "shared": [],
    "notes": [],
    "vllm": {"groups": 5, "request_blocks": 7, "block_bytes": 4096},
}


@pytest.fixture
def jamba(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "jamba"}))
    return tmp_path


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Mapping[str, Any]]:
    """The questions that were put to vLLM."""
    questions: list[Mapping[str, Any]] = []

    def ask(module: str, question: Mapping[str, Any], environment: object) -> Any:
        questions.append(question)
        return ANSWER

    monkeypatch.setattr(explain_built, "ask", ask)
    return questions


def explain(capsys: pytest.CaptureFixture[str], *options: str) -> dict[str, Any]:
    assert cli.main(["explain", "--format", "json", *options]) == 0
    plain: dict[str, Any] = json.loads(capsys.readouterr().out)
    return plain


def test_a_type_that_is_not_known_is_built(
    jamba: Path, asked: list[Mapping[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--model", str(jamba), "--draft", str(CONFIGS / "Qwen3-0.6B")]
    plain = explain(capsys, *options, "--tensor-parallel-size", "2", "--max-model-len", "4096")
    (question,) = asked
    assert question["model"] == str(jamba)
    assert (question["ranks"], question["tokens"], question["vllm_grouping"]) == (2, 4096, True)
    assert question["speculative"] == {
        "method": "draft_model",
        "num_speculative_tokens": 3,
        "model": str(CONFIGS / "Qwen3-0.6B"),
    }
    groups = [[x["name"] for x in group["layers"]] for group in plain["groups"]]
    assert groups == [["t.0"], ["t.1", "d.0"]] or groups == [["t.1", "d.0"], ["t.0"]]
    assert plain["request"]["tokens"] == 4096
    assert plain["vllm"]["groups"] == 5
    assert plain["subjects"]["target"].endswith("(jamba, 2 layers, bfloat16)")
    assert any("built by vLLM" in note and "'jamba'" in note for note in plain["notes"])


@pytest.mark.parametrize(
    "options", [["--build"], ["--kv-cache-dtype", "int8"], ["--additional-config", "{}"]]
)
def test_known_types_are_built_when_asked_for(
    options: list[str], asked: list[Mapping[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    explain(capsys, "--model", str(CONFIGS / "Qwen3-0.6B"), *options)
    assert len(asked) == 1
    assert asked[0]["kv_cache_dtype"] == ("int8" if "int8" in options else "auto")


def test_layout_options_of_the_engine_are_those_of_the_plan(
    jamba: Path, asked: list[Mapping[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    layout: dict[str, object] = {"objective": "least_memory", "max_block_size": 1024}
    given = ["--additional-config", json.dumps({"mkv_ascend": {"layout": layout}})]
    assert explain(capsys, "--model", str(jamba), *given)["objective"] == "least_memory"
    mine = ["--objective", "fewest_groups"]
    assert explain(capsys, "--model", str(jamba), *given, *mine)["objective"] == "fewest_groups"
    layout["max_padding_fraction"] = 0.0
    given[1] = json.dumps({"mkv_ascend": {"layout": layout}})
    assert explain(capsys, "--model", str(jamba), *given)["padding_fraction"] > 0
    draft = ["--draft", str(CONFIGS / "Qwen3-0.6B")]
    said = refused(capsys, "--model", str(jamba), *draft, *given)
    assert "max_padding_fraction is 0.0" in said
    layout["objective"] = "speed"
    given[1] = json.dumps({"mkv_ascend": {"layout": layout}})
    assert "mkv_ascend.layout.objective is 'speed'" in refused(
        capsys, "--model", str(jamba), *given
    )


def refused(capsys: pytest.CaptureFixture[str], *options: str) -> str:
    assert cli.main(["explain", *options]) == 2
    return capsys.readouterr().err


def test_what_vllm_says_is_the_refusal(
    jamba: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(explain_built, "ask", lambda *_: {"error": "KeyError: 'experts' (x.py:1)"})
    said = refused(capsys, "--model", str(jamba))
    assert "models of type 'jamba' cannot be explained by their numbers alone" in said
    assert "refuses this: KeyError: 'experts' (x.py:1)" in said

    def broken(*_: object) -> None:
        raise ProcessError("no device")

    monkeypatch.setattr(explain_built, "ask", broken)
    assert "could not be asked to build the models: no device" in refused(
        capsys, "--model", str(jamba)
    )


def test_nothing_is_built_where_that_is_not_wanted(
    jamba: Path, asked: list[Mapping[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert "'jamba' cannot be explained" in refused(capsys, "--model", str(jamba), "--no-build")
    said = refused(capsys, "--model", str(jamba), "--no-build", "--additional-config", "{}")
    assert "leave out --no-build" in said
    assert asked == []


def test_layers_that_are_not_planned_are_noted(
    jamba: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    layers = [{**ANSWER["layers"][1], "planned": False}]  # type: ignore[index]
    answer = {**ANSWER, "layers": layers, "shared": [["t.5", "t.1"]]}
    monkeypatch.setattr(explain_built, "ask", lambda *_: answer)
    notes = explain(capsys, "--model", str(jamba))["notes"]
    assert any("layers such as t.1" in note and "not what is served" in note for note in notes)
    assert any(
        "1 layer without a cache of its own, such as t.5, which reads t.1's" in n for n in notes
    )

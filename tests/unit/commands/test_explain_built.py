# SPDX-License-Identifier: Apache-2.0
"""``mkv-ascend explain`` of models that vLLM has to build; what it builds is written down here.

tests/emulated/platform/test_explain.py lets vLLM build them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import transformers  # noqa: F401  So that defaults of configs are asked for in this process.

from mkv_ascend import cli
from mkv_ascend.adapters import installed as installed_host
from mkv_ascend.commands import from_vllm
from mkv_ascend.commands.explain_process import ProcessError
from mkv_ascend.layout.grouping import GroupingOptions
from mkv_ascend.layout.kind import Role
from mkv_ascend.layout.planning import CachedLayer, PlanInputs
from mkv_ascend.layout.retention import Request, Retention, RetentionKind
from mkv_ascend.layout.serialization import to_dict
from tests.support.caches.layouts import keys_and_values, states

CONFIGS = Path(__file__).resolve().parents[2] / "data" / "configs"


LAYERS = (
    CachedLayer(
        states("t.0", (3, 64), (8, 16, 16)), Retention(RetentionKind.STATE, 1), "mamba_2", "mamba"
    ),
    CachedLayer(keys_and_values("t.1", 2, 64, block=1024), Retention(RetentionKind.ALL), "fused"),
    CachedLayer(
        keys_and_values("d.0", 1, 64, block=1024, role=Role.DRAFT),
        Retention(RetentionKind.ALL),
        "fused",
    ),
)
INPUTS = PlanInputs(LAYERS, Request(4096, 4), 2048, GroupingOptions())
ANSWER = {
    "inputs": to_dict(INPUTS),
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

    monkeypatch.setattr(from_vllm, "ask_host", ask)
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
    engine = question["engine"]
    assert engine["model"] == str(jamba)
    assert (engine["tensor_parallel_size"], engine["max_model_len"]) == (2, 4096)
    assert question["vllm_grouping"] is True
    assert engine["speculative_config"] == {
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


def test_caches_that_are_left_to_the_host_are_not_explained(
    jamba: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(from_vllm, "ask_host", lambda *_: {"unplanned": "KV transfer is on"})
    assert cli.main(["explain", "--model", str(jamba)]) == 2
    said = capsys.readouterr().err
    assert "no plan of mkv_ascend" in said
    assert "because KV transfer is on" in said


def test_vllm_makes_the_configuration_of_the_runner(
    jamba: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environments: list[Any] = []

    def ask(module: str, question: object, environment: object) -> Any:
        environments.append(environment)
        return ANSWER

    monkeypatch.setattr(from_vllm, "ask_host", ask)
    monkeypatch.setattr(installed_host, "runners", lambda: ("v1", "v2"))
    monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", "1")
    for options in ([], ["--runner", "v1"], ["--runner", "v2"]):
        assert cli.main(["explain", "--model", str(jamba), *options]) == 0
    assert [each["VLLM_USE_V2_MODEL_RUNNER"] for each in environments] == ["1", "0", "1"]


@pytest.mark.parametrize("options", [["--build"], ["--kv-cache-dtype", "int8"]])
def test_known_types_are_built_when_asked_for(
    options: list[str], asked: list[Mapping[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    explain(capsys, "--model", str(CONFIGS / "Qwen3-0.6B"), *options)
    assert len(asked) == 1
    cache_dtype = asked[0]["engine"]["kv_cache_dtype"]
    assert cache_dtype == ("int8" if "int8" in options else "auto")


def test_what_vllm_groups_itself_is_told_by_numbers(
    asked: list[Mapping[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    """Without a draft an engine takes vLLM's groups, and nothing is built to know them."""
    plain = explain(capsys, "--model", str(CONFIGS / "gpt-oss-20b"), "--no-vllm-grouping")
    windows, full = ([x["name"] for x in group["layers"]] for group in plain["groups"])
    assert windows == [f"model.layers.{layer}.attn.attn" for layer in range(0, 24, 2)]
    assert full == [f"model.layers.{layer}.attn.attn" for layer in range(1, 24, 2)]
    plain = explain(capsys, "--model", str(CONFIGS / "Qwen3-0.6B"), "--no-vllm-grouping")
    assert [len(group["layers"]) for group in plain["groups"]] == [28]
    assert not asked


def test_groups_that_an_engine_was_given_are_kept(
    jamba: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given = replace(INPUTS, groups=(("t.0",), ("d.0",), ("t.1",)))
    answer = {**ANSWER, "inputs": to_dict(given)}
    monkeypatch.setattr(from_vllm, "ask_host", lambda *_: answer)
    plain = explain(capsys, "--model", str(jamba), "--max-model-len", "4096")
    assert [[x["name"] for x in g["layers"]] for g in plain["groups"]] == [
        ["t.0"],
        ["d.0"],
        ["t.1"],
    ]
    assert [group["admission_blocks"] for group in plain["groups"]] == [1, 4, 4]
    assert plain["request"]["bytes"] == 9 * plain["bytes_per_block"]


def test_layout_options_of_the_command_come_before_the_engines(
    jamba: Path, asked: list[Mapping[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    layout: dict[str, object] = {"objective": "least_memory", "max_block_size": 1024}
    given = ["--additional-config", json.dumps({"mkv_ascend": {"layout": layout}, "other": 1})]
    explain(capsys, "--model", str(jamba), *given)
    explain(capsys, "--model", str(jamba), *given, "--objective", "fewest_groups")
    first, second = (question["engine"]["additional_config"] for question in asked)
    assert first == {"mkv_ascend": {"layout": layout}, "other": 1}
    assert second["mkv_ascend"]["layout"] == {**layout, "objective": "fewest_groups"}
    layout["objective"] = "speed"
    given[1] = json.dumps({"mkv_ascend": {"layout": layout}})
    assert "mkv_ascend.layout.objective is 'speed'" in refused(
        capsys, "--model", str(jamba), *given
    )


def test_layout_options_are_those_of_the_plan(capsys: pytest.CaptureFixture[str]) -> None:
    pair = ["--model", str(CONFIGS / "gpt-oss-20b"), "--draft", str(CONFIGS / "gemma-3-1b")]
    pair += ["--no-vllm-grouping", "--no-build"]
    layout: dict[str, object] = {"objective": "least_memory", "max_padding_fraction": 0.0}
    given = ["--additional-config", json.dumps({"mkv_ascend": {"layout": layout}})]
    assert "max_padding_fraction is 0.0" in refused(capsys, *pair, *given)
    layout["max_padding_fraction"] = 0.5
    given[1] = json.dumps({"mkv_ascend": {"layout": layout}})
    assert explain(capsys, *pair, *given)["objective"] == "least_memory"


def refused(capsys: pytest.CaptureFixture[str], *options: str) -> str:
    assert cli.main(["explain", *options]) == 2
    return capsys.readouterr().err


def test_what_vllm_says_is_the_refusal(
    jamba: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(from_vllm, "ask_host", lambda *_: {"error": "KeyError: 'experts' (x.py:1)"})
    said = refused(capsys, "--model", str(jamba))
    assert "models of type 'jamba' cannot be explained by their numbers alone" in said
    assert "refuses this: KeyError: 'experts' (x.py:1)" in said

    def broken(*_: object) -> None:
        raise ProcessError("no device")

    monkeypatch.setattr(from_vllm, "ask_host", broken)
    assert "could not be asked to build the models: no device" in refused(
        capsys, "--model", str(jamba)
    )


def test_nothing_is_built_where_that_is_not_wanted(
    jamba: Path, asked: list[Mapping[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert "'jamba' cannot be explained" in refused(capsys, "--model", str(jamba), "--no-build")
    said = refused(capsys, "--model", str(jamba), "--no-build", "--kv-cache-dtype", "int8")
    assert "leave out --no-build" in said
    assert asked == []


def test_layers_without_a_cache_are_noted(
    jamba: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = {**ANSWER, "shared": [["t.5", "t.1"]]}
    monkeypatch.setattr(from_vllm, "ask_host", lambda *_: answer)
    notes = explain(capsys, "--model", str(jamba))["notes"]
    assert any(
        "1 layer without a cache of its own, such as t.5, which reads t.1's" in n for n in notes
    )

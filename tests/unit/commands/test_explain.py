# SPDX-License-Identifier: Apache-2.0
"""``mkv-ascend explain`` on the config.json files of tests/data: right numbers, or a sentence."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import transformers  # noqa: F401  So that defaults of configs are asked for in this process.

from benchmarks.models import load_pair
from benchmarks.rows import ROWS, Row
from mkv_ascend import cli
from mkv_ascend.adapters import installed as installed_host
from mkv_ascend.checks import from_config, model_config
from mkv_ascend.checks.planning_inputs import Asked
from mkv_ascend.commands import explain_process, vllm_groups
from mkv_ascend.layout.report import OtherGrouping
from mkv_ascend.layout.retention import Request, RetentionKind

CONFIGS = Path(__file__).resolve().parents[2] / "data" / "configs"
MIB = 2**20


def explain(*options: str, status: int = 0) -> None:
    assert cli.main(["explain", "--no-vllm-grouping", "--no-build", *options]) == status


def explain_json(capsys: pytest.CaptureFixture[str], *options: str) -> dict[str, Any]:
    explain("--format", "json", *options)
    plain: dict[str, Any] = json.loads(capsys.readouterr().out)
    return plain


def folder(name: str) -> str:
    return str(CONFIGS / name)


def without_states(row: Row) -> bool:
    return not any(layer.states for layer in load_pair(row.target, row.draft).layers)


@pytest.mark.parametrize(
    "row", [row for row in ROWS if without_states(row)], ids=lambda row: row.name
)
def test_layers_are_those_of_the_benchmark(row: Row, capsys: pytest.CaptureFixture[str]) -> None:
    """Read by other code: kinds, bytes of a page, and what the request needs."""
    pair = load_pair(row.target, row.draft)
    options = ["--model", folder(row.target), "--draft", folder(row.draft)]
    options += ["--max-model-len", "32768", "--max-block-size", "128"]
    plain = explain_json(capsys, *options)
    layers = {layer["name"]: layer for group in plain["groups"] for layer in group["layers"]}
    found = [
        (layer["role"], layer["kind"], layer["page_bytes"])
        for _, layer in sorted(layers.items(), key=lambda item: _place(item[0]))
    ]
    expected = [(layer.role.value, layer.kind.value, layer.page_bytes) for layer in pair.layers]
    assert found == expected
    needs = sum(need.needed_bytes(Request(32768, 4)) for need in pair.needs())
    assert plain["request"]["needed_bytes"] == needs
    assert plain["request"]["needed_bytes"] / MIB == pytest.approx(row.ideal_mib, abs=0.51)


def _place(name: str) -> tuple[bool, int]:
    return name.startswith("draft"), int(re.findall(r"layers\.(\d+)", name)[0])


def test_deepseek_with_its_own_predictor(capsys: pytest.CaptureFixture[str]) -> None:
    config = '{"method": "mtp", "num_speculative_tokens": 1}'
    options = ["--model", folder("DeepSeek-V3"), "--speculative-config", config]
    plain = explain_json(capsys, *options, "--memory", "32GiB")
    (group,) = plain["groups"]
    assert len(group["layers"]) == 62
    assert group["layers"][-1]["name"] == "model.layers.61.self_attn.attn"
    assert {layer["backend"] for layer in group["layers"]} == {"mla"}
    # 62 layers of a latent of 512 and a rope key of 64, bfloat16, blocks of 128 tokens.
    assert plain["bytes_per_block"] == 62 * 576 * 2 * 128
    assert plain["request"]["tokens"] == 163840
    assert plain["request"]["blocks"] == 1280
    assert plain["num_blocks"] == 32 * 2**30 // plain["bytes_per_block"]
    assert plain["max_concurrency"] == (plain["num_blocks"] - 1) / 1280


def test_states_of_a_hybrid_allow_for_draft_tokens(capsys: pytest.CaptureFixture[str]) -> None:
    """Qwen3-Next: 2 x 16 x 128 + 32 x 128 channels, width 4 - 1 + K, ssm of 32 x 128 x 128."""
    config = '{"method": "mtp", "num_speculative_tokens": 2}'
    options = ["--model", folder("Qwen3-Next-80B-A3B"), "--speculative-config", config]
    plain = explain_json(capsys, *options)
    layers = [layer for group in plain["groups"] for layer in group["layers"]]
    states = {layer["page_bytes"] for layer in layers if layer["kind"] == "mamba"}
    assert states == {2 * ((3 + 2) * 8192 + 32 * 128 * 128)}
    # On 0.30 vLLM's blocks of 640 tokens hold a state. Pages of 128, a divisor, pack closer.
    block = 128 if installed_host.rules().equal_pages else 1024
    assert {layer["backend"] for layer in layers} == {"gated_delta_net", "fused_infer_attention"}
    of_states = [g for g in plain["groups"] if g["layers"][0]["kind"] == "mamba"]
    # One state, and one for each draft token; with hits also one at the end of a block.
    assert {group["blocks"] for group in of_states} == {
        3 + installed_host.rules().hits_beside_states
    }
    attention = next(g for g in plain["groups"] if g not in of_states)
    assert attention["tokens_per_block"] == block


def test_ranks_share_heads_but_not_latents(capsys: pytest.CaptureFixture[str]) -> None:
    def pages(*options: str) -> dict[str, int]:
        plain = explain_json(capsys, *options)
        return {
            layer["role"]: layer["page_bytes"]
            for group in plain["groups"]
            for layer in group["layers"]
        }

    options = ["--model", folder("DeepSeek-V3"), "--draft", folder("eagle3-8x128")]
    eagle = '{"method": "eagle3", "num_speculative_tokens": 3}'
    one = pages(*options, "--speculative-config", eagle)
    eight = pages(*options, "--speculative-config", eagle, "--tensor-parallel-size", "8")
    sixteen = pages(*options, "--speculative-config", eagle, "--tensor-parallel-size", "16")
    assert one == {"target": 576 * 2 * 128, "draft": 2 * 8 * 128 * 2 * 128}
    assert eight == {"target": 576 * 2 * 128, "draft": 2 * 128 * 2 * 128}
    # More ranks than heads: each keeps one.
    assert sixteen == eight


def test_a_draft_may_have_one_rank(capsys: pytest.CaptureFixture[str]) -> None:
    config = {
        "method": "eagle3",
        "model": folder("eagle3-8x128"),
        "num_speculative_tokens": 3,
        "draft_tensor_parallel_size": 1,
    }
    options = ["--model", folder("DeepSeek-V3"), "--tensor-parallel-size", "8"]
    plain = explain_json(capsys, *options, "--speculative-config", json.dumps(config))
    draft = [x for g in plain["groups"] for x in g["layers"] if x["role"] == "draft"]
    assert [layer["page_bytes"] for layer in draft] == [2 * 8 * 128 * 2 * 128]


def test_objectives_are_each_others_price(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--model", folder("Llama-3.1-8B"), "--draft", folder("gemma-3-1b")]
    options += ["--max-model-len", "32768"]
    fewest = explain_json(capsys, *options)
    least = explain_json(capsys, *options, "--objective", "least_memory")
    assert len(fewest["groups"]) < len(least["groups"])
    assert fewest["request"]["bytes"] > least["request"]["bytes"]
    assert fewest["other_objective"]["request_bytes"] == least["request"]["bytes"]
    assert least["other_objective"]["groups"] == len(fewest["groups"])


def test_text_is_the_default(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--model", folder("Llama-3.1-8B"), "--draft", folder("gemma-3-1b")]
    explain(*options, "--max-model-len", "32768", "--memory", "32GiB")
    shown = capsys.readouterr().out
    assert "target  Llama-3.1-8B (llama, 32 layers, bfloat16)" in shown
    assert "model.layers.0-31.self_attn.attn (32)" in shown
    assert "this plan (balanced)" in shown


def test_blocks_are_no_larger_than_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--model", folder("Llama-3.1-8B"), "--draft", folder("gemma-3-1b")]
    options += ["--max-model-len", "32768", "--objective", "least_memory"]
    own = explain_json(capsys, *options, "--max-block-size", "128")
    larger = explain_json(capsys, *options)
    assert {group["tokens_per_block"] for group in own["groups"]} == {128}
    assert max(group["tokens_per_block"] for group in larger["groups"]) == 512
    assert larger["request"]["bytes"] < own["request"]["bytes"]


def test_blocks_are_those_that_the_host_takes(capsys: pytest.CaptureFixture[str]) -> None:
    """vllm-ascend takes a size beside states alone; then a page is at least as large as a state."""
    options = ["--model", folder("Qwen3-Next-80B-A3B"), "--max-block-size", "128"]
    plain = explain_json(capsys, *options, "--block-size", "2048")
    attention = [g for g in plain["groups"] if g["layers"][0]["kind"] != "mamba"]
    assert [group["tokens_per_block"] for group in attention] == [2048]
    assert not any("--block-size" in note for note in plain["notes"])
    options = ["--model", folder("Llama-3.1-8B"), "--max-block-size", "128"]
    plain = explain_json(capsys, *options, "--block-size", "256")
    assert [group["tokens_per_block"] for group in plain["groups"]] == [128]
    assert any("--block-size 256 has no effect" in note for note in plain["notes"])
    explain("--model", folder("Qwen3-Next-80B-A3B"), "--block-size", "200", status=2)
    assert "--block-size is 200" in capsys.readouterr().err


def test_layers_have_the_window_that_vllm_counts_by() -> None:
    found = from_config.find(
        Asked({"model": folder("gpt-oss-20b"), "max_model_len": 4096}), installed_host.rules()
    )
    retentions = {
        layer.layout.layer: (layer.retention.kind, layer.retention.extent)
        for layer in found.inputs.layers
    }
    assert retentions["model.layers.0.attn.attn"] == (RetentionKind.WINDOW, 128)
    assert retentions["model.layers.1.attn.attn"] == (RetentionKind.ALL, 0)


def test_nothing_but_errors_goes_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    explain("--model", folder("DeepSeek-V3"))
    assert capsys.readouterr().err == ""


def test_nothing_that_computes_is_imported() -> None:
    """In a process of its own: torch takes seconds to import, Dynamo more."""
    command = ["explain", "--no-vllm-grouping", "--model", folder("gpt-oss-120b")]
    command += ["--draft", folder("gpt-oss-20b")]
    program = (
        "import sys\nfrom mkv_ascend import cli\n"
        f"status = cli.main({command!r})\n"
        "heavy = [name for name in ('torch', 'transformers', 'vllm') if name in sys.modules]\n"
        "assert (status, heavy) == (0, []), (status, heavy)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    assert "model.layers.[0, 2" in done.stdout


def test_methods_without_a_model_have_no_draft_layers(capsys: pytest.CaptureFixture[str]) -> None:
    config = '{"method": "ngram", "num_speculative_tokens": 5}'
    plain = explain_json(capsys, "--model", folder("Llama-3.1-8B"), "--speculative-config", config)
    assert plain["request"]["tokens_per_step"] == 6
    assert {x["role"] for g in plain["groups"] for x in g["layers"]} == {"target"}


def test_defaults_that_a_config_leaves_out_are_filled_in(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As published for gemma-3-4b: heads and the pattern of windows are the class's defaults."""
    text = {
        "model_type": "gemma3_text",
        "hidden_size": 2560,
        "num_hidden_layers": 34,
        "sliding_window": 1024,
    }
    names = ["Gemma3ForConditionalGeneration"]
    config = {"model_type": "gemma3", "architectures": names, "text_config": text}
    config["dtype"] = "bfloat16"
    (tmp_path / "config.json").write_text(json.dumps(config))
    ours = explain_json(capsys, "--model", str(tmp_path), "--max-model-len", "4096")
    full = explain_json(capsys, "--model", folder("gemma-3-4b"), "--max-model-len", "4096")
    assert ours["groups"] == full["groups"]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--model", "/nowhere"], "there is no file /nowhere/config.json"),
        (
            ["--speculative-config", '{"method": "medusa", "num_speculative_tokens": 1}'],
            "speculative method 'medusa' cannot be explained by numbers alone; known: ",
        ),
        (
            ["--speculative-config", '{"method": "eagle3", "num_speculative_tokens": 1}'],
            "speculative method eagle3 needs a draft",
        ),
        (["--speculative-config", '{"method": "eagle3"}'], "num_speculative_tokens"),
        (
            ["--speculative-config", '{"method": "mtp", "num_speculative_tokens": 1}'],
            "has no multi-token predictor",
        ),
        (["--tensor-parallel-size", "3"], "3: one must divide the other"),
        (["--tensor-parallel-size", "64"], "which --tensor-parallel-size 64 does not divide"),
        (
            ["--draft", "a", "--speculative-config", '{"model": "b", "num_speculative_tokens": 1}'],
            "--draft is a and model of --speculative-config is b",
        ),
    ],
)
def test_what_cannot_be_explained_is_a_sentence(
    options: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    model = [] if "--model" in options else ["--model", folder("Llama-3.1-8B")]
    explain(*model, *options, status=2)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("mkv-ascend explain: ")
    assert sentence in captured.err


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        ({"model_type": "jamba"}, "models of type 'jamba' cannot be explained"),
        ({}, "models of type None cannot be explained"),
        (
            {"model_type": "mistral", "num_hidden_layers": 2, "sliding_window": 4096},
            "sliding_window 4096 without layer_types",
        ),
        (
            {"model_type": "qwen2", "use_sliding_window": True, "max_window_layers": 0},
            "use_sliding_window in a qwen2 model cannot be explained",
        ),
        ({"model_type": "kimi_k2"}, "has no number 'kv_lora_rank'"),
        (
            {"model_type": "mimo_v2_flash", "num_hidden_layers": 2, "hybrid_layer_pattern": [0]},
            "hybrid_layer_pattern is [0]; a model of type mimo_v2_flash has a 1 there",
        ),
        (
            {"model_type": "llama", "num_key_value_heads": 1, "head_dim": 72},
            "no backend can serve it",
        ),
    ],
)
def test_a_config_that_cannot_be_read_is_a_sentence(
    config: dict[str, Any], sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    explain("--model", str(tmp_path), status=2)
    assert sentence in capsys.readouterr().err


@pytest.mark.parametrize("text", ["{", "[]"])
def test_a_file_that_is_no_config_is_a_sentence(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.json").write_text(text)
    explain("--model", str(tmp_path), status=2)
    assert "JSON" in capsys.readouterr().err


@pytest.mark.parametrize(
    "option",
    [
        ["--memory", "plenty"],
        ["--max-model-len", "0"],
        ["--speculative-config", "{"],
        ["--speculative-config", "[]"],
        ["--objective", "speed"],
    ],
)
def test_options_that_mean_nothing_are_refused(option: list[str]) -> None:
    with pytest.raises(SystemExit) as refusal:
        cli.main(["explain", "--model", folder("Llama-3.1-8B"), *option])
    assert refusal.value.code == 2


def test_sparse_attention_keeps_an_indexer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = json.loads((CONFIGS / "DeepSeek-V3" / "config.json").read_text())
    config.update(model_type="deepseek_v32", index_head_dim=128)
    (tmp_path / "config.json").write_text(json.dumps(config))
    plain = explain_json(capsys, "--model", str(tmp_path))
    layers = [layer for group in plain["groups"] for layer in group["layers"]]
    attended, key = 576 * 2 * 128, 128 * 2 * 128
    kept = {("sparse_mla", "sparse_mla", attended + key)}
    if installed_host.rules().indexer_is_a_layer:
        kept = {
            ("mla", "sparse_mla", attended),
            ("sparse_mla", "AscendSFAIndexerBackend", key),
        }
    assert {(x["kind"], x["backend"], x["page_bytes"]) for x in layers} == kept
    assert sum(x["page_bytes"] for x in layers) == 61 * (attended + key)


def test_an_output_file_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "plan.html"
    explain("--model", folder("Qwen3-0.6B"), "--format", "html", "--output", str(file))
    assert capsys.readouterr().out == ""
    assert file.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    missing = tmp_path / "missing" / "plan.html"
    explain("--model", folder("Qwen3-0.6B"), "--output", str(missing), status=2)
    assert "cannot write" in capsys.readouterr().err


def test_a_page_without_jinja2_says_what_to_install(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    options = ["--model", str(folder("gpt-oss-20b")), "--format", "html"]
    assert cli.main(["explain", *options]) == 2
    assert capsys.readouterr().err == (
        "mkv-ascend explain: --format html needs jinja2, which is not here: pip install jinja2\n"
    )


def test_vllm_is_shown_beside_or_the_reason_why_not(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def answer(layers: object, padded: object, request: object) -> OtherGrouping:
        return OtherGrouping(groups=9, request_blocks=3, block_bytes=MIB)

    def failure(layers: object, padded: object, request: object) -> OtherGrouping:
        raise explain_process.ProcessError("no device")

    options = ["explain", "--model", folder("Qwen3-0.6B")]
    monkeypatch.setattr(vllm_groups, "ask_vllm", answer)
    assert cli.main(options) == 0
    assert "vLLM's own            9       3.0 MiB" in capsys.readouterr().out
    monkeypatch.setattr(vllm_groups, "ask_vllm", failure)
    assert cli.main(options) == 0
    assert "vLLM's own grouping is not shown: no device" in capsys.readouterr().out


def test_help_says_what_is_computed_and_what_is_not(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["explain", "--help"])
    shown = " ".join(capsys.readouterr().out.split())
    assert "no weights and no NPU" in shown
    assert "others are built by vLLM itself, without weights" in shown


def test_a_refusal_names_the_types_that_are_known() -> None:
    with pytest.raises(model_config.ExplainError, match=r"known: .*deepseek_v3"):
        model_config.read_model(CONFIGS / "Qwen3-Next-80B-A3B-mtp")


def test_what_model_runner_v2_does_not_draft_for_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The engine's words; what it serves has the plan of V1."""
    monkeypatch.setattr(installed_host, "runners", lambda: ("v1", "v2"))
    options = ["--model", folder("Llama-3.1-8B"), "--draft", folder("Qwen3-0.6B")]
    plain = explain_json(capsys, *options, "--runner", "v2")
    assert plain["subjects"].pop("runner") == "v2"
    assert plain == explain_json(capsys, *options, "--runner", "v1")
    parallel = json.dumps({"num_speculative_tokens": 3, "parallel_drafting": True})
    explain(*options, "--speculative-config", parallel, "--runner", "v2", status=2)
    said = capsys.readouterr().err
    assert "parallel drafting with drafts of mkv_ascend on model runner V2" in said
    assert "VLLM_USE_V2_MODEL_RUNNER=0" in said
    monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", "1")
    explain(*options, "--speculative-config", parallel, status=2)
    explain(*options, "--speculative-config", parallel, "--runner", "v1")


def test_a_runner_that_the_host_lacks_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(installed_host, "runners", lambda: ("v1",))
    explain("--model", folder("Qwen3-0.6B"), "--runner", "v2", status=2)
    assert "--runner v2: the installed vllm-ascend has v1" in capsys.readouterr().err

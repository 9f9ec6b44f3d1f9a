# SPDX-License-Identifier: Apache-2.0
"""What ``mkv-ascend check`` says of commands that will be served; how long it takes."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import transformers  # noqa: F401 - once, or every plan asks a process of its own

from mkv_ascend import cli
from mkv_ascend.adapters import installed as installed_host
from mkv_ascend.checks.model import read_model_facts
from mkv_ascend.checks.speculation import read_speculation
from mkv_ascend.layout.kind import Role
from tests.support import hosts
from tests.support.mistake import mkv, spec

CONFIGS = Path(__file__).resolve().parents[2] / "data" / "configs"
MIB = 2**20


def folder(name: str) -> str:
    return str(CONFIGS / name)


def check(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert cli.main(["check", "--json", "--", "vllm", "serve", *words]) == 0
    answer: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert answer["answer"] == "served"
    return answer


@pytest.mark.parametrize(
    ("target", "method"), [("Qwen3-Next-80B-A3B", "mtp"), ("Qwen3-0.6B", "draft_model")]
)
def test_without_a_method_the_targets_own_checkpoint_is_its_head(target: str, method: str) -> None:
    draft = folder("Qwen3-Next-80B-A3B")
    speculative = {"model": draft, "num_speculative_tokens": 1}
    speculation, _ = read_speculation(
        {"speculative_config": speculative}, read_model_facts(Role.TARGET, folder(target))
    )
    assert speculation is not None
    assert speculation.method == method


def test_a_draft_of_short_options_is_planned_as_any(capsys: pytest.CaptureFixture[str]) -> None:
    draft = folder("gemma-3-270m")
    asked = {"method": "draft_model", "model": draft, "num_speculative_tokens": 3}
    short = ["--spec-method", "draft_model", "--spec-model", draft, "--spec-tokens", "3"]
    whole = check(capsys, folder("gemma-3-1b"), "--speculative-config", json.dumps(asked))
    assert set(whole["backends"]) == {"target", "draft"}
    assert check(capsys, folder("gemma-3-1b"), *short) == whole


def test_memory_is_counted_as_by_hand(capsys: pytest.CaptureFixture[str]) -> None:
    """Llama-3.1-8B on one rank: 32 layers, 8 heads of 128, keys and values of 2 bytes."""
    words = [folder("Llama-3.1-8B"), "--max-model-len", "8192", "--kv-cache-memory-bytes", "4G"]
    answer = check(capsys, *words)
    block = 32 * 8 * 128 * 2 * 2 * 128
    assert answer["bytes_per_block"] == block
    assert answer["request_bytes"] == 64 * block
    assert answer["blocks"] == 4 * 2**30 // block
    assert answer["requests"] == round((answer["blocks"] - 1) / 64, 2)
    assert answer["backends"] == {"target": {"fused_infer_attention": 32}}
    assert answer["groups"] == [{"target_layers": 32, "draft_layers": 0, "block_size": 128}]
    assert answer["draft_graphs"] is None


@pytest.mark.parametrize(
    ("words", "tokens"),
    [
        (["--block-size", "1024"], 128),
        (["--block-size", "100", "--no-enable-prefix-caching"], 128),
        (["--block-size", "100", "--no-enable-chunked-prefill"], 128),
        (["--block-size", "256", "--no-enable-chunked-prefill", "--no-enable-prefix-caching"], 256),
        (["--block-size", "128"], 128),
    ],
    ids=str,
)
def test_blocks_that_the_host_does_not_take_are_said(
    words: list[str], tokens: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """vllm-ascend takes its own, whatever is asked for, where there are hits or chunks."""
    answer = check(capsys, folder("Llama-3.1-8B"), "--max-model-len", "8192", *words)
    assert [group["block_size"] for group in answer["groups"]] == [tokens]
    notes = [note for note in answer["notes"] if note.startswith(f"--block-size {words[1]} has")]
    assert len(notes) == (int(words[1]) != tokens)


@pytest.mark.parametrize("auto", ["auto", "-1"])
@pytest.mark.parametrize(
    ("words", "tokens"),
    [
        (["--num-gpu-blocks-override", "65"], 64 * 128),
        (["--kv-cache-memory-bytes", "1G"], 63 * 128),
        (["--kv-cache-memory-bytes", "64G"], 131072),
    ],
    ids=str,
)
def test_vllm_shortens_requests_that_memory_does_not_hold(
    auto: str, words: list[str], tokens: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """A block of this model has 16 MiB, and one is vLLM's own."""
    answer = check(capsys, folder("Llama-3.1-8B"), "--max-model-len", auto, *words)
    assert answer["max_model_len"] == tokens
    assert answer["request_bytes"] == tokens // 128 * answer["bytes_per_block"]
    assert (answer["requests"] == 1.0) == (tokens < 131072)
    said = [note for note in answer["notes"] if note.startswith("--max-model-len")]
    assert all(f"holds {tokens} of 131072 tokens" in note for note in said)
    assert len(said) == (tokens < 131072)


@pytest.mark.parametrize("target", ["LFM2-1.2B", "Qwen3-Next-80B-A3B"])
def test_small_blocks_are_enlarged_beside_states(
    target: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Stock serves such a command; blocks hold a state, or are those of kernels."""
    words = [folder(target), "--max-model-len", "8192", "-tp", "4"]
    groups = check(capsys, *words)["groups"]
    assert check(capsys, *words, "--block-size", "16")["groups"] == groups


def test_chunks_of_mimo_v2_are_none(
    models: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Its config.json names a size of chunks, and its layers attend to windows."""
    words = [models["mimo-v2"], "--trust-remote-code", "--max-model-len", "8192", "-tp", "4"]
    assert check(capsys, *words)["backends"] == {"target": {"fused_infer_attention": 48}}


def test_an_own_predictor_shares_the_targets_group(capsys: pytest.CaptureFixture[str]) -> None:
    words = [folder("DeepSeek-V3"), "-tp", "8", "--max-model-len", "32k"]
    answer = check(capsys, *words, *spec(None, method="mtp"))
    assert answer["groups"] == [{"target_layers": 61, "draft_layers": 1, "block_size": 128}]
    assert answer["backends"] == {"target": {"mla": 61}, "draft": {"mla": 1}}
    assert answer["draft_graphs"] == "captured in full graphs"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--enforce-eager"], "eagerly: the target has no full graphs"),
        (["-cc", '{"cudagraph_mode": "PIECEWISE"}'], "eagerly: the target has no full graphs"),
        # Without experts, each rank runs its passes alone.
        (["-dp", "2"], "captured in full graphs"),
        ([], "captured in full graphs"),
    ],
)
def test_how_the_drafts_passes_run(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    draft = (*spec(folder("LFM2-350M")), "--no-enable-prefix-caching")
    answer = check(capsys, folder("LFM2-1.2B"), *draft, *words)
    assert answer["draft_graphs"] == said
    assert not any("prefix" in note for note in answer["notes"])


@pytest.mark.parametrize(("k", "tokens"), [(14, None), (15, 17)])
def test_a_first_pass_of_mla_is_captured_while_its_rows_are_decodes(
    k: int, tokens: int | None, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of a draft model: the last accepted token, K drafts and the one that was sampled."""
    name = folder("DeepSeek-V2-Lite")
    answer = check(capsys, name, *spec(name, k, method="draft_model"), "--max-model-len", "4096")
    graphs = "captured in full graphs"
    if tokens is not None:
        graphs = f"eagerly: a request's {tokens} tokens are a prefill to MLA, whose decodes have 16"
    assert answer["draft_graphs"] == graphs


def test_drafts_where_ranks_share_keys_are_captured_on_one_host(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """As ``tests/emulated/drafting/test_drafting_shares.py`` has it."""
    words = [folder("DeepSeek-V3"), "-tp", "8", "-dcp", "8", *spec(None, method="mtp")]
    eagerly = "eagerly: ranks share the keys of a sequence, and masks of its rows are made eagerly"
    captured = hosts.NAME == "vllm_ascend_0_30"
    said = "captured in full graphs" if captured else eagerly
    assert check(capsys, *words)["draft_graphs"] == said


def test_deepseek_v4s_own_layer_is_captured(
    models: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    """In vLLM's default mode, as ``test_mtp_layer_in_default_graphs`` has it."""
    answer = check(capsys, models["v4-whole"], *spec(None, method="mtp"), "-tp", "8")
    assert answer["target_graphs"] == "FULL_AND_PIECEWISE"
    assert answer["draft_graphs"] == "captured in full graphs"


@pytest.mark.parametrize(
    ("asked", "target", "draft"), [((), 32, 128), ((128,), 128, 256), ((256,), 32, 128)], ids=str
)
def test_a_draft_beside_deepseek_v4_has_blocks_of_its_own_kernels(
    asked: tuple[int, ...],
    target: int,
    draft: int,
    models: dict[str, str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Kernels of the target read blocks of 32, 64 and 128, those of the draft of 128.

    For 256, which vLLM asks for on other devices, vllm-ascend takes 32.
    """
    words = [models["v4-whole"], "-tp", "8", "--distributed-executor-backend", "mp"]
    words += [f"--block-size={size}" for size in asked]
    answer = check(capsys, *words, *spec(models["v4-draft"]), "--max-model-len", "32k")
    of_draft = {group["block_size"] for group in answer["groups"] if group["draft_layers"]}
    of_target = {group["block_size"] for group in answer["groups"] if group["target_layers"]}
    assert (max(of_target), of_draft) == (target, {draft})
    ignored = [note for note in answer["notes"] if "has no effect" in note]
    assert [note.split(" has")[0] for note in ignored] == ["--block-size 256"] * (256 in asked)


@pytest.mark.parametrize(
    ("target", "draft", "mode", "replayed"),
    [
        ("DeepSeek-V3", (None, "mtp"), "FULL_AND_PIECEWISE", True),
        ("DeepSeek-V3", (None, "mtp"), "FULL", False),
        ("Qwen3-0.6B", ("Qwen3-Next-80B-A3B", "draft_model"), "FULL_DECODE_ONLY", False),
    ],
)
def test_drafts_with_experts_are_replayed_where_ranks_agree(
    target: str,
    draft: tuple[str | None, str],
    mode: str,
    replayed: bool,
    capsys: pytest.CaptureFixture[str],
) -> None:
    model, method = draft
    words = spec(model and folder(model), method=method)
    modes = ("-cc", json.dumps({"cudagraph_mode": mode}), "--no-enable-prefix-caching")
    answer = check(capsys, folder(target), *words, *modes, "-dp", "2", "-tp", "2")
    eagerly = "eagerly: its passes are one with those of other ranks"
    assert answer["draft_graphs"] == ("captured in full graphs" if replayed else eagerly)


@pytest.mark.parametrize(
    ("words", "changes", "said"),
    [
        ([], {}, "the draft has recurrent layers: it reads the tokens of each prefix hit itself"),
        (["-dp", "2"], {}, "will be off: the draft has recurrent layers, and the passes"),
        (
            [],
            {"layer_types": ["conv", "sliding_attention"] * 8},
            "recurrent layers, and keys before its windows",
        ),
        (["--no-enable-prefix-caching"], {}, None),
    ],
)
def test_what_prefix_hits_come_to_beside_a_recurrent_draft(
    words: list[str],
    changes: dict[str, Any],
    said: str | None,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    values = json.loads((CONFIGS / "LFM2-350M" / "config.json").read_text())
    values.update(vocab_size=128256, **changes)
    (tmp_path / "config.json").write_text(json.dumps(values))
    answer = check(capsys, folder("Llama-3.1-8B"), *spec(str(tmp_path)), *words)
    found = [note for note in answer["notes"] if "prefix" in note]
    assert len(found) == (said is not None)
    assert said is None or said in found[0]


def test_a_window_of_the_draft_makes_room_for_more_requests(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Of a Llama of 32 layers with itself; a window of 4096 tokens holds 32 blocks and one."""
    model = folder("Llama-3.1-8B")
    words = (model, *spec(model), "--max-model-len", "32k", "--kv-cache-memory-bytes", "24G")
    words = (*words, "--max-num-batched-tokens", "2048", "--no-async-scheduling")
    whole = check(capsys, *words)
    assert whole["groups"] == [{"target_layers": 32, "draft_layers": 32, "block_size": 128}]
    windowed = check(capsys, *words, *mkv(drafting={"window": 4096}))
    assert windowed["backends"]["draft"] == {"fused_infer_attention": 32}
    assert windowed["groups"] == [
        {"target_layers": 32, "draft_layers": 0, "block_size": 128},
        {"target_layers": 0, "draft_layers": 32, "block_size": 128},
    ]
    # Blocks of half the layers: all of the target's, and a window with the tokens of a step.
    block = whole["bytes_per_block"] // 2
    assert windowed["bytes_per_block"] == block
    assert whole["request_bytes"] == 2 * 250 * block
    assert windowed["request_bytes"] == (250 + (4096 - 1 + 2048 + 127) // 128 + 1) * block
    assert windowed["requests"] > 1.6 * whole["requests"]
    assert check(capsys, *words, *mkv(drafting={"window": 32000})) == whole


def test_the_answer_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["vllm", "serve", folder("Llama-3.1-8B"), "--kv-cache-memory-bytes", "32G"]
    assert cli.main(["check", "--", *words]) == 0
    said = capsys.readouterr().out
    assert said.startswith("will be served\n")
    assert "fused_infer_attention (32 layers)" in said
    assert "16384.0 MiB for one request of 131072 tokens" in said


def test_an_emulated_npu_is_judged_by_its_own_options(capsys: pytest.CaptureFixture[str]) -> None:
    emulated = ["mkv-ascend", "emulate", "--devices", "2", "--memory", "1GiB", "--"]
    words = ["vllm", "serve", folder("Llama-3.1-8B"), "-tp", "4"]
    assert cli.main(["check", "--", *emulated, *words]) == 1
    assert "there are 2 (the emulated NPU" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "in the 5243 MiB of a device that --gpu-memory-utilization leaves"),
        (["--gpu-memory-utilization", "0.75"], "in the 16384 MiB"),
        (["--kv-cache-memory-bytes", "8G"], "in what weights, activations and caches leave"),
        (["--enforce-eager"], None),
    ],
)
def test_a_note_says_that_the_memory_of_graphs_is_not_counted(
    words: list[str], said: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = check(capsys, folder("Qwen3-0.6B"), *words)
    found = [note for note in answer["notes"] if "graphs" in note]
    assert len(found) == (said is not None)
    assert said is None or said in found[0]


FOR_TRAINING = {"rl_config": {"enabled": True}}


@pytest.mark.parametrize(
    ("words", "additional", "is_said"),
    [
        (["--enable-sleep-mode"], {}, True),
        (["--enable-sleep-mode"], {"weight_nz_mode": 2}, True),
        (["--enable-sleep-mode"], {"weight_nz_mode": 0}, False),
        (["--enable-sleep-mode"], {"rl_config": {"enabled": False}}, True),
        (["--enable-sleep-mode"], FOR_TRAINING, not installed_host.rules().has_rl_config),
        ([], {}, False),
    ],
)
def test_a_note_says_that_an_engine_would_not_wake_up(
    words: list[str], additional: dict[str, Any], is_said: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [*words, "--additional-config", json.dumps(additional)]
    answer = check(capsys, folder("Qwen3-0.6B"), *words)
    found = [note for note in answer["notes"] if "wake" in note]
    assert len(found) == is_said
    assert not found or f"is {additional.get('weight_nz_mode', 1)};" in found[0]


def test_a_check_takes_seconds_and_imports_neither_torch_nor_vllm() -> None:
    """The goal is 5 s of a processor; the limit is one that a loaded machine does not reach."""
    program = (
        "import sys\nfrom mkv_ascend import cli\nstatus = cli.main(sys.argv[1:])\n"
        "print([name for name in ('torch', 'vllm', 'vllm_ascend') if name in sys.modules])\n"
        "sys.exit(status)"
    )
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    words = ["vllm", "serve", folder("DeepSeek-V3"), *spec(None, method="mtp")]
    done = subprocess.run(
        [sys.executable, "-c", program, "check", "--", *words, "-tp", "8"],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "[]"
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 20


@pytest.mark.parametrize(
    ("words", "may_be_said"),
    [
        ([], True),
        (["--async-scheduling"], False),
        (["--no-async-scheduling"], False),
        (["--distributed-executor-backend", "ray"], False),
        (["--distributed-executor-backend", "mp"], True),
        (["--pipeline-parallel-size", "2"], False),
    ],
    ids=str,
)
def test_that_a_draft_waits_by_default_is_said(
    words: list[str], may_be_said: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where the host would schedule ahead if it were asked to."""
    speculation = {"model": folder("gemma-3-270m"), "num_speculative_tokens": 3}
    words = [folder("gemma-3-1b"), "--speculative-config", json.dumps(speculation), *words]
    notes = check(capsys, *words, "--max-model-len", "8192")["notes"]
    said = [note for note in notes if "--async-scheduling schedules each" in note]
    assert bool(said) == (
        may_be_said and "draft_model" in installed_host.rules().in_turn_by_default
    )

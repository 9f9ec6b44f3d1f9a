# SPDX-License-Identifier: Apache-2.0
"""``mkv-ascend explain`` shows the plan of models that vLLM builds, beside vLLM's own grouping."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.support import hosts, programs
from tests.support.stock import RUNNER_V2

pytestmark = [pytest.mark.slow, pytest.mark.host("0.23")]
CONFIGS = Path(__file__).resolve().parents[2] / "data" / "configs"
MIB = 2**20
DEVICE = ("--device-memory", "4096GiB", "--format", "json")


def explain(target: str, *options: str) -> dict[str, Any]:
    command = ["explain", *DEVICE, str(CONFIGS / target), "--max-model-len", "32768", *options]
    done = programs.run_program("mkv_ascend.cli", command)
    assert done.status == 0, done.errors
    plain: dict[str, Any] = json.loads(done.output)
    return plain


@pytest.mark.parametrize(
    ("target", "draft", "groups", "mib"),
    # Measured of vLLM 0.23.0 before mkv_ascend had a grouping (benchmarks/rows.py).
    [("gpt-oss-20b", "eagle3-8x128", 25, 908), ("DeepSeek-V3", "eagle3-8x128", 1, 2324)],
)
def test_vllms_own_grouping_is_shown(
    target: str, draft: str, groups: int, mib: int, tmp_path: Path
) -> None:
    """A head as wide as the target, whose own layer keeps as much as the draft of the figures."""
    widths = [json.loads((CONFIGS / one / "config.json").read_text()) for one in (target, draft)]
    head = {**widths[1], "hidden_size": widths[0]["hidden_size"]}
    (tmp_path / "config.json").write_text(json.dumps(head), encoding="utf-8")
    options = ["--draft", f"eagle3={tmp_path}", "--kv-cache-memory", "8GiB"]
    found = explain(target, *options)
    vllm = found["vllm"]
    assert vllm["groups"] == groups
    # vllm-ascend 0.30.0rc2 gives each layer a buffer of its own, for the blocks of all groups.
    buffers = groups if hosts.A_BUFFER_FOR_EACH_LAYER else 1
    assert vllm["request_bytes"] / MIB == pytest.approx(mib * buffers, abs=0.5 * buffers)
    assert vllm["num_blocks"] == 8 * 2**30 // vllm["bytes_per_block"]
    assert found["num_blocks"] * found["bytes_per_block"] <= 8 * 2**30


@hosts.only_on("vllm_ascend_0_23", "vLLM 0.30.0 has no class that loads Kimi-Linear's gates")
def test_layers_of_latents_and_of_delta_attention_are_shown() -> None:
    """Kimi-Linear: 20 layers of delta attention and 7 of latents; vLLM cannot group it."""
    plain = explain("Kimi-Linear-48B-A3B", "--trust-remote-code")
    layers = Counter(
        (layer["kind"], layer["page_bytes"]) for g in plain["groups"] for layer in g["layers"]
    )
    # Three convolutions of 32 x 128 channels and 3 rows, in bfloat16; a float32 state.
    state = 3 * 3 * 32 * 128 * 2 + 32 * 128 * 128 * 4
    tokens = {group["tokens_per_block"] for group in plain["groups"] if "mla" in str(group)}
    (block,) = tokens
    assert layers == {("mamba", state): 20, ("mla", 576 * 2 * block): 7}
    assert plain["vllm"]["error"].startswith("NotImplementedError")


def test_what_is_refused_is_not_shown() -> None:
    done = programs.run_program(
        "mkv_ascend.cli", ["explain", str(CONFIGS / "Llama-3.1-8B"), "--kv-cache-dtype", "fp8"]
    )
    assert (done.status, done.output) == (1, "")
    assert done.errors.startswith("mkv-ascend explain: this cannot be served [kv-cache-dtype]: ")


@hosts.only_on("vllm_ascend_0_30", "vLLM 0.23.0 has no such option")
@pytest.mark.parametrize(
    ("target", "draft", "status"),
    [("Qwen3-0.6B", "Qwen3-0.6B", 0), ("gemma-3-1b", "gemma-3-270m", 1)],
)
def test_the_drafts_own_class_says_whether_it_tells_likeliest_tokens(
    target: str, draft: str, status: int
) -> None:
    speculation = {
        "method": "draft_model",
        "model": str(CONFIGS / draft),
        "num_speculative_tokens": 3,
        "use_local_argmax_reduction": True,
    }
    options = ["--max-model-len", "4096", "--speculative-config", json.dumps(speculation)]
    command = ["check", *DEVICE[:2], str(CONFIGS / target), *options]
    done = programs.run_program("mkv_ascend.cli", command, RUNNER_V2)
    assert done.status == status, done.errors
    assert ("has no get_top_tokens in vLLM 0.30.0" in done.errors) == bool(status)


def test_experts_that_move_are_answered_though_their_processes_hold_the_pipe() -> None:
    """vllm-ascend's runner starts processes for them, which outlive the one that builds."""
    options = ["-tp", "4", "--enable-expert-parallel", "--max-model-len", "4096"]
    moving = json.dumps({"eplb_config": {"dynamic_eplb": True}})
    served = ["vllm", "serve", str(CONFIGS / "DeepSeek-V2-Lite"), *options]
    command = ["check", "--devices", "8", *DEVICE[:2], "--", "DYNAMIC_EPLB=true", *served]
    done = programs.run_program(
        "mkv_ascend.cli", [*command, "--additional-config", moving], timeout=300
    )
    assert done.status == 0, done.errors
    assert "requests" in done.output

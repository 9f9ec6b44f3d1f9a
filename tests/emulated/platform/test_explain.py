# SPDX-License-Identifier: Apache-2.0
"""``mkv-ascend explain`` asks vLLM itself, and reads states as vLLM does."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from mkv_ascend.checks.model_config import read_model
from tests.support import hosts, programs

pytestmark = pytest.mark.slow
CONFIGS = Path(__file__).resolve().parents[2] / "data" / "configs"
MIB = 2**20


def arguments(target: str, *options: str) -> list[str]:
    command = ["explain", "--format", "json", "--max-model-len", "32768"]
    return [*command, "--model", str(CONFIGS / target), *options]


def explain(target: str, *options: str) -> dict[str, Any]:
    done = programs.run_program("mkv_ascend.cli", arguments(target, *options))
    assert done.status == 0, done.errors
    plain: dict[str, Any] = json.loads(done.output)
    return plain


def explain_in_a_process_of_ours(target: str, *options: str) -> dict[str, Any]:
    """As a user runs it, so that what it takes is counted as our child's."""
    command = [sys.executable, "-m", "mkv_ascend.cli", *arguments(target, *options)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    plain: dict[str, Any] = json.loads(done.stdout)
    return plain


@pytest.mark.host("0.23", cases=["*-1-*"])
@pytest.mark.nightly("other cases of it stay", cases=["gpt-*"])
@pytest.mark.parametrize(
    ("target", "draft", "groups", "mib"),
    # Measured of vLLM 0.23.0 before mkv_ascend had a grouping (benchmarks/rows.py).
    [("gpt-oss-20b", "eagle3-8x128", 25, 908), ("DeepSeek-V3", "eagle3-8x128", 1, 2324)],
)
def test_vllms_own_grouping_is_shown(target: str, draft: str, groups: int, mib: int) -> None:
    config = '{"method": "eagle3", "num_speculative_tokens": 3}'
    options = ["--draft", str(CONFIGS / draft), "--speculative-config", config]
    vllm = explain(target, *options, "--memory", "8GiB")["vllm"]
    assert vllm["groups"] == groups
    # vllm-ascend 0.30.0rc2 gives each layer a buffer of its own, for the blocks of all groups.
    buffers = groups if hosts.A_BUFFER_FOR_EACH_LAYER else 1
    assert vllm["request_bytes"] / MIB == pytest.approx(mib * buffers, abs=0.5 * buffers)
    assert vllm["num_blocks"] == 8 * 2**30 // vllm["bytes_per_block"]


@pytest.mark.host("0.23")
@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("draft_tokens", [0, 3])
def test_states_have_the_shapes_of_vllm(ranks: int, draft_tokens: int) -> None:
    from vllm.model_executor.layers.mamba.mamba_utils import MambaStateShapeCalculator

    model = read_model(CONFIGS / "Qwen3-Next-80B-A3B")
    state = next(layer for layer in model.layers(ranks, draft_tokens) if layer.states)
    assert state.states == MambaStateShapeCalculator.gated_delta_net_state_shape(
        ranks, 16, 32, 128, 128, 4, draft_tokens
    )
    model = read_model(CONFIGS / "LFM2-1.2B")
    state = next(layer for layer in model.layers(ranks, draft_tokens) if layer.states)
    # The window also holds the tokens of a verification (patches/short_convolution.py).
    ((width, channels),) = MambaStateShapeCalculator.short_conv_state_shape(ranks, 2048, 3)
    assert state.states == ((width + draft_tokens, channels),)


def kept(plain: dict[str, Any]) -> set[tuple[Any, ...]]:
    """How many layers of each model keep what, in which blocks."""
    found: Counter[tuple[Any, ...]] = Counter()
    for group in plain["groups"]:
        for layer in group["layers"]:
            what = (layer["role"], layer["kind"], layer["backend"], layer["page_bytes"])
            found[(*what, group["tokens_per_block"], group["blocks"])] += 1
    return set(found.items())


@pytest.mark.host("0.23")
def test_what_vllm_builds_is_what_the_numbers_say_within_a_minute_and_4_gib() -> None:
    """Both models of 61 and 24 layers on 8 ranks: latents, windows, sinks; no weights."""
    draft = ["--draft", str(CONFIGS / "gpt-oss-20b"), "--tensor-parallel-size", "8"]
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    built = explain_in_a_process_of_ours("DeepSeek-V3", *draft, "--build")
    # Time of one processor, not of the clock: other tests run beside this one.
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before < 60
    # KiB of the largest process that this one waited for.
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss < 4 * 2**20
    numbers = explain("DeepSeek-V3", *draft, "--no-build", "--no-vllm-grouping")
    assert kept(built) == kept(numbers)
    for name in ("request", "bytes_per_block", "padding_fraction"):
        assert built[name] == numbers[name]
    if hosts.A_BUFFER_FOR_EACH_LAYER:
        assert built["vllm"]["groups"] > 0
    else:
        assert built["vllm"]["error"].startswith("NotImplementedError: The page size of the layer")
    assert any("its vocabulary has 201088 tokens, not 129280" in note for note in built["notes"])


@pytest.mark.host("0.23")
@hosts.only_on("vllm_ascend_0_23", "vLLM 0.30.0 has no class that loads Kimi-Linear's gates")
def test_a_model_of_a_type_that_is_not_known_is_built() -> None:
    """Kimi-Linear: 20 layers of delta attention and 7 of latents; vLLM cannot group it."""
    plain = explain("Kimi-Linear-48B-A3B")
    layers = Counter(
        (layer["kind"], layer["page_bytes"]) for g in plain["groups"] for layer in g["layers"]
    )
    # Three convolutions of 32 x 128 channels and 3 rows, in bfloat16; a float32 state.
    state = 3 * 3 * 32 * 128 * 2 + 32 * 128 * 128 * 4
    tokens = {group["tokens_per_block"] for group in plain["groups"] if "mla" in str(group)}
    (block,) = tokens
    assert layers == {("mamba", state): 20, ("mla", 576 * 2 * block): 7}
    assert plain["vllm"]["error"].startswith("NotImplementedError")
    assert any("'kimi_linear'" in note for note in plain["notes"])

# SPDX-License-Identifier: Apache-2.0
"""``mkv-ascend advise`` of published models: what it refuses, and the work that vLLM built."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from benchmarks import prediction
from emulated_npu import variables
from mkv_ascend import cli
from mkv_ascend.commands import host_process
from tests.support import hosts
from tests.support.command_judge import PUBLISHED, folders
from tests.support.judging import forked_judges

__all__ = ["folders", "forked_judges"]

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("room", "forked_judges")]
DENSE, SPARSE = "Llama-3.1-8B-Instruct", "Qwen3-30B-A3B"
ALONE = ("--method", "suffix", "--acceptance", "0.4")
DEVICE = {**host_process.THIS, "count_is_known": True, "memory_bytes": 1 << 50, "generation": "A2"}


@pytest.fixture(scope="module")
def room() -> Iterator[None]:
    """What ``check`` gives the process that judges: both commands ask one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(variables.DEVICES.name, str(variables.MOST_DEVICES))
        patch.setenv(variables.MEMORY.name, variables.MEMORY.format(1 << 50))
        yield


def works(folder: str, method: str | None = None) -> dict[str, Any]:
    words = [folder, "--max-model-len", "4096"]
    if method is not None:
        speculation = {"method": method, "num_speculative_tokens": 1}
        words += ["--speculative-config", json.dumps(speculation)]
    question = {"words": words, "device": DEVICE, "plan": False, "works": True}
    answer: dict[str, Any] = host_process.ask(question, {}, "advise")
    assert answer["answer"] == "served", answer
    found: dict[str, Any] = answer["works"]
    return found


def total(work: dict[str, Any], unit: str = "elements") -> int:
    found = work["head"][unit] + work["resident"][unit]
    for layer in work["layers"]:
        experts = layer["experts"]
        in_experts = experts["count"] * experts["each"][unit] if experts else 0
        found += layer["number"] * (layer["weights"][unit] + in_experts)
    return int(found)


@pytest.mark.parametrize(
    ("target", "ranks", "draft", "code"),
    [
        ("DeepSeek-V3", 16, ("--method", "mtp"), "weight-format"),
        (DENSE, 1, ("--draft", "Qwen3-0.6B"), "host"),
        (DENSE, 3, ("--draft", "Llama-3.2-1B-Instruct"), "host"),
    ],
    ids=["fp8 on A2", "unlike vocabulary", "ranks that share no heads"],
)
def test_what_check_refuses_is_not_predicted(
    target: str,
    ranks: int,
    draft: tuple[str, str],
    code: str,
    folders: dict[str, str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    """With its words, and its exit status."""
    given = [folders[target], "-tp", str(ranks)]
    asked = [draft[0], folders.get(draft[1], draft[1])]
    assert cli.main(["advise", *given, *asked, "--acceptance", "0.7"]) == 1
    told = capsys.readouterr()
    speculation = {"method": "draft_model" if draft[0] == "--draft" else draft[1]}
    if draft[0] == "--draft":
        speculation["model"] = asked[1]
    words = json.dumps({**speculation, "num_speculative_tokens": 1})
    check = ["check", "--devices", "16", "--device-memory", "1048576GiB", *given]
    check += ["--max-model-len", "4096", "--speculative-config", words]
    assert cli.main(check) == 1
    refused = capsys.readouterr()
    assert (told.out, told.err) == (
        "",
        refused.err.replace("mkv-ascend check", "mkv-ascend advise"),
    )
    assert f"cannot be served [{code}]" in told.err


@pytest.mark.parametrize("name", [DENSE, SPARSE])
def test_parameters_are_those_of_the_models_own_class(name: str, folders: dict[str, str]) -> None:
    """Of transformers' class, which has each matrix by itself; without ranks, whole."""
    config = AutoConfig.from_pretrained(folders[name])
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    sizes = {key: one.numel() for key, one in model.named_parameters()}
    found = works(folders[name])["target"]
    assert total(found) == sum(sizes.values())
    assert total(found, "bytes") == 2 * sum(sizes.values())
    assert found["resident"]["elements"] == sizes["model.embed_tokens.weight"]
    assert found["head"]["elements"] == sizes["lm_head.weight"] + sizes["model.norm.weight"]
    (layer,) = found["layers"]
    assert layer["number"] == config.num_hidden_layers
    in_experts = sum(size for key, size in sizes.items() if ".layers.0.mlp.experts." in key)
    of_layer = sum(size for key, size in sizes.items() if ".layers.0." in key)
    assert layer["weights"]["elements"] == of_layer - in_experts
    if name == SPARSE:
        assert layer["experts"]["chosen"] == config.num_experts_per_tok
        assert layer["experts"]["each"]["elements"] * config.num_experts == in_experts
    head_size = config.head_dim
    assert layer["caches"] == [
        {
            "token_bytes": 2 * config.num_key_value_heads * head_size * 2,
            "pair_flop": 2 * config.num_attention_heads * 2 * head_size,
            "window": 0,
        }
    ]


def described(name: str, folder: Path) -> str:
    """Its matrices of layers in 8 bits, as ModelSlim names them."""
    config = PUBLISHED[name]
    attention = [f"self_attn.{part}_proj" for part in "qkvo"]
    parts = [f"{part}_proj" for part in ("gate", "up", "down")]
    inner = [f"mlp.{part}" for part in parts]
    if experts := config.get("num_experts"):
        inner = [f"mlp.experts.{number}.{part}" for number, part in product(range(experts), parts)]
    kinds = {"model.embed_tokens.weight": "FLOAT", "lm_head.weight": "FLOAT"}
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}"
        kinds[f"{prefix}.mlp.gate.weight"] = "FLOAT"
        kinds |= {f"{prefix}.{one}.weight": "W8A8_DYNAMIC" for one in (*attention, *inner)}
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    path = folder / "quant_model_description.json"
    path.write_text(json.dumps(kinds), encoding="utf-8")
    return str(folder)


@pytest.mark.parametrize("name", ["Qwen3-8B", SPARSE])
def test_weights_of_8_bits_halve_what_a_step_reads(
    name: str, folders: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    quantised = described(name, tmp_path / "quantised")
    plain, halved = (works(folder)["target"] for folder in (folders[name], quantised))
    for one, other in zip(plain["layers"], halved["layers"], strict=True):
        both = [(one["weights"], other["weights"])]
        if one["experts"]:
            both = [(one["experts"]["each"], other["experts"]["each"])]
        for weights, of_8_bits in both:
            # Beside them scales, and norms as they were.
            assert of_8_bits["elements"] == pytest.approx(weights["elements"], rel=0.01)
            assert of_8_bits["bytes"] == pytest.approx(weights["bytes"] / 2, rel=0.02)
    assert halved["head"] == plain["head"]
    times = []
    for folder in (folders[name], quantised):
        assert cli.main(["advise", "--json", folder, *ALONE, "--batch", "1", "-tp", "2"]) == 0
        answer = json.loads(capsys.readouterr().out)
        times.append(answer["batches"][0]["shown"]["plain_ms"])
    assert times[1] < 0.8 * times[0]


def test_caches_of_each_kind_by_hand(folders: dict[str, str]) -> None:
    """Windows, latents and states, of the shapes that were published."""
    window, whole = works(folders["gpt-oss-20b-bf16"])["target"]["layers"]
    assert [layer["caches"][0]["window"] for layer in (window, whole)] == [128, 0]
    first, following = works(folders["DeepSeek-V2-Lite-Chat"])["target"]["layers"]
    assert (first["number"], following["number"]) == (1, 26)
    latent = {"token_bytes": 576 * 2, "pair_flop": 2 * 16 * (576 + 512), "window": 0}
    assert first["caches"] == following["caches"] == [latent]
    recurrent, attention = works(folders["Qwen3-Next-80B-A3B-Instruct"])["target"]["layers"]
    assert (recurrent["number"], attention["number"]) == (36, 12)
    convolution, state = 3 * (2 * 16 + 32) * 128, 32 * 128 * 128
    assert recurrent["state_bytes"] == 2 * (convolution + state)
    assert (recurrent["caches"], attention["state_bytes"]) == ([], 0)
    short, attention = works(folders["LFM2-1.2B"])["target"]["layers"]
    assert (short["number"], short["state_bytes"]) == (10, 2 * 2 * 2048)


def test_a_predictor_is_a_layer_of_the_target_behind_a_matrix(folders: dict[str, str]) -> None:
    """DeepSeek-V3's: two hidden states in, one out, and three norms."""
    found = works(folders["DeepSeek-V3-bf16"], "mtp")
    (layer,), (_, like) = found["draft"]["layers"], found["target"]["layers"]
    more = layer["weights"]["elements"] - like["weights"]["elements"]
    assert more == 2 * 7168 * 7168 + 3 * 7168
    assert (layer["experts"], layer["caches"]) == (like["experts"], like["caches"])
    assert found["draft"]["head"]["elements"] == 129280 * 7168


def test_tokens_that_an_indexer_picks_are_not_guessed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    indexer = {"index_head_dim": 128, "index_n_heads": 64, "index_topk": 2048}
    kind = {"model_type": "deepseek_v32", "architectures": ["DeepseekV32ForCausalLM"]}
    path = tmp_path / "config.json"
    path.write_text(
        json.dumps({**PUBLISHED["DeepSeek-V3-bf16"], **kind, **indexer}), encoding="utf-8"
    )
    assert cli.main(["advise", str(tmp_path), *ALONE]) == 2
    told = capsys.readouterr().err
    assert "caches of kind sparse_mla do not tell what a step reads. Possible: models" in told


@hosts.only_on("vllm_ascend_0_23", "the file has what vLLM 0.23.0 builds")
@pytest.mark.parametrize(("name", "ranks"), [("Qwen3-4B", 4), ("GPT-OSS-20b", 4)])
def test_works_of_published_rows_are_what_is_built(name: str, ranks: int) -> None:
    kept = json.loads(prediction.WORKS.read_text(encoding="utf-8"))
    assert set(kept) == {f"{name} x {ranks}" for name, ranks in prediction.models()}
    assert kept[f"{name} x {ranks}"] == prediction.built(name, ranks)

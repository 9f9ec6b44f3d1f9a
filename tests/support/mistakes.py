# SPDX-License-Identifier: Apache-2.0
"""Mistakes of users: a command, with what codes it is refused, and words of the message.

``{NAME}`` in a command is the folder of a model: one of tests/data/configs, or one of ``CHANGED``.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

CHANGED: dict[str, tuple[str, dict[str, Any]]] = {
    "llama-draft": ("Llama-3.1-8B", {"num_hidden_layers": 4}),
    "gemma-draft": ("gemma-3-1b", {"vocab_size": 262208}),
    "gptq": ("Llama-3.1-8B", {"quantization_config": {"quant_method": "gptq", "bits": 4}}),
    "awq-draft": (
        "Llama-3.1-8B",
        {"num_hidden_layers": 4, "quantization_config": {"quant_method": "awq"}},
    ),
    "heads-72": ("Llama-3.1-8B", {"head_dim": 72}),
    "odd-vocabulary": ("Llama-3.1-8B", {"vocab_size": 32001}),
    "no-heads": ("Llama-3.1-8B", {"num_attention_heads": -4}),
    "no-layers": ("Llama-3.1-8B", {"num_hidden_layers": 0}),
    "null-text": ("gemma-3-4b", {"text_config": None}),
    "mamba1": ("Llama-3.1-8B", {"model_type": "jamba", "architectures": ["JambaForCausalLM"]}),
    "mamba-only": ("Llama-3.1-8B", {"model_type": "mamba2"}),
    "kimi-as-draft": ("Kimi-Linear-48B-A3B", {"vocab_size": 128256}),
    "lfm2-draft": ("LFM2-350M", {"vocab_size": 128256, "hidden_size": 4096}),
    "next-draft": ("Qwen3-Next-80B-A3B", {"vocab_size": 65536}),
    "moe-draft": (
        "Llama-3.1-8B",
        {"model_type": "mixtral", "num_local_experts": 8, "num_hidden_layers": 2},
    ),
    "eagle-narrow": ("Llama-3.1-8B", {"num_hidden_layers": 1, "hidden_size": 2048}),
    "eagle3-deep": (
        "eagle3-8x128",
        {"eagle_aux_hidden_state_layer_ids": [2, 16, 99]},
    ),
    "window-head": (
        "Llama-3.1-8B",
        {"num_hidden_layers": 1, "layer_types": ["sliding_attention"], "sliding_window": 512},
    ),
    "v4": ("DeepSeek-V3", {"model_type": "deepseek_v4", "compress_ratios": [4, 128]}),
    "qwen35": ("Qwen3-Next-80B-A3B", {"model_type": "qwen3_5_text"}),
    "image-draft": ("Llama-3.1-8B", {"rope_scaling": {"mrope_section": [16, 24, 24]}}),
    "sparse": ("DeepSeek-V3", {"model_type": "deepseek_v32", "index_topk": 2048}),
}
"""Name -> published model, and what is changed in its config.json."""


@dataclass(frozen=True)
class Mistake:
    """``words``: behind ``vllm serve``. ``codes``: of the refusals, none where it is unreadable."""

    name: str
    words: tuple[str, ...]
    codes: tuple[str, ...]
    says: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    """Of ``mkv-ascend check`` itself."""

    @property
    def status(self) -> int:
        """Exit status of ``mkv-ascend check``."""
        return 1 if self.codes else 2


def spec(draft: str | None, tokens: Any = 3, **more: Any) -> tuple[str, str]:
    """``--speculative-config`` with a draft's folder."""
    values = {"num_speculative_tokens": tokens, **more}
    if draft is not None:
        values["model"] = draft
    # Braces of JSON, but for the names of folders.
    return "--speculative-config", json.dumps(values)


def mkv(**options: Any) -> tuple[str, str]:
    """``--additional-config`` with options of ours."""
    return "--additional-config", json.dumps({"mkv_ascend": options})


LLAMA, DRAFT = "{Llama-3.1-8B}", "{llama-draft}"
LAYERS = "attention.layers"


def _one(name: str, code: str, *words: str, says: str | tuple[str, ...] = ()) -> Mistake:
    return Mistake(name, words, (code,), (says,) if isinstance(says, str) else says)


COMMANDS = (
    Mistake("another command", (), (), ("is not a command",), ("python", "-m", "x")),
    Mistake("no model", ("--enforce-eager",), (), ("no model is given",)),
    Mistake("unknown option", (LLAMA, "--speculativ-model", "x"), (), ("unrecognized",)),
    Mistake("not a number", (LLAMA, "--max-model-len", "many"), (), ("--max-model-len",)),
    Mistake("not JSON", (LLAMA, "--speculative-config", "{model: x}"), (), ("is not JSON",)),
    Mistake("unknown choice", (LLAMA, "--kv-cache-dtype", "int3"), (), ("invalid choice",)),
    Mistake("no config file", (LLAMA, "--config", "nowhere.yaml"), (), ("nowhere.yaml",)),
    Mistake("config of a wrong type", (LLAMA, "--config", "x.json"), (), ("end in .yaml",)),
    Mistake(
        "nested option without value", (LLAMA, "--speculative-config.model"), (), ("no value",)
    ),
)

MODELS = (
    _one("no such model", "model-config", "/nowhere/model", says="there is no file"),
    _one("-4 heads", "model-config", "{no-heads}", says="num_attention_heads is -4"),
    _one("0 layers", "model-config", "{no-layers}", says="num_hidden_layers is 0"),
    _one("text_config null", "model-config", "{null-text}", says="text_config is null"),
    _one("no such draft", "draft-config", LLAMA, *spec("/nowhere"), says="there is no file"),
    _one("draft with 0 layers", "draft-config", LLAMA, *spec("{no-layers}")),
    _one("gptq", "quantization", "{gptq}", says=("gptq", "compressed-tensors")),
    _one("awq draft", "quantization", LLAMA, *spec("{awq-draft}"), says="of the draft"),
    _one("quantization asked", "quantization", LLAMA, "-q", "bitsandbytes"),
    _one("quantization of the draft", "quantization", LLAMA, *spec(DRAFT, quantization="awq")),
    _one("heads of 72", "backend", "{heads-72}", says="head sizes are"),
    _one("float32", "dtype", LLAMA, "--dtype", "float32", says="bfloat16"),
)

NUMBERS = (
    _one("0 ranks", "number", LLAMA, "-tp", "0", says="--tensor-parallel-size is 0"),
    _one("share over 1", "number", LLAMA, "--gpu-memory-utilization", "1.5"),
    _one("negative blocks", "number", LLAMA, "--num-gpu-blocks-override", "-3"),
    _one("too long", "max-model-len", "{Qwen3-0.6B}", "--max-model-len", "1m"),
    _one("blocks of 100", "block-size", LLAMA, "--block-size", "100", says="multiples of 128"),
    _one(
        "step below requests",
        "step-size",
        LLAMA,
        "--max-num-batched-tokens",
        "64",
        "--max-num-seqs",
        "128",
    ),
    _one(
        "nothing left by drafts",
        "step-size",
        LLAMA,
        *spec(DRAFT),
        "--max-num-batched-tokens",
        "128",
        "--max-num-seqs",
        "128",
    ),
    _one("more ranks than devices", "devices", LLAMA, "-tp", "16", says="there are 8"),
    _one("stages over devices", "devices", LLAMA, "-tp", "8", "-pp", "2"),
    _one("copies over devices", "devices", LLAMA, "-tp", "4", "-dp", "4"),
    _one("ranks that divide no heads", "heads", LLAMA, "-tp", "5", says="1, 2, 4, 8, 16, 32"),
    _one("fp8 cache", "kv-cache-dtype", LLAMA, "--kv-cache-dtype", "fp8", says="leave"),
    _one("fp8 cache with MLA", "kv-cache-dtype", "{DeepSeek-V3}", "--kv-cache-dtype", "fp8"),
    _one("e5m2 cache", "kv-cache-dtype", LLAMA, "--kv-cache-dtype", "fp8_e5m2"),
)

OPTIONS = (
    _one("FLASHINFER", "backend-name", LLAMA, "--attention-backend", "FLASHINFER"),
    _one(
        "draft's backend unknown",
        "backend-name",
        LLAMA,
        *spec(DRAFT, attention_backend="TRITON_ATTN"),
        says="--speculative-config",
    ),
    _one("backend of another kind", "backend", LLAMA, *mkv(attention={"target": "mla"})),
    _one(
        "draft's backend of another kind",
        "backend",
        LLAMA,
        *spec(DRAFT),
        *mkv(attention={"draft": "sparse_mla"}),
        says="every attention layer of the draft",
    ),
    _one(
        "flash_attention_3 in graphs",
        "backend",
        LLAMA,
        *mkv(attention={"target": "flash_attention_3"}),
        says="ACL graph",
    ),
    _one("unknown key", "options", LLAMA, *mkv(atention={}), says="did you mean 'attention'?"),
    _one("unknown backend", "options", LLAMA, *mkv(attention={"target": "FA9"})),
    _one("options of a wrong type", "options", LLAMA, *mkv(layout=[])),
    _one("not an object", "additional-config", LLAMA, "--additional-config", "mkv"),
    _one("our key misspelt", "options", LLAMA, "--additional-config", '{"mkv-ascend": {}}'),
    _one("blocks of at most 100", "options", LLAMA, *mkv(layout={"max_block_size": 100})),
    _one("blocks without end", "options", LLAMA, *mkv(layout={"max_block_size": 10**30})),
    _one("padding over 1", "options", LLAMA, *mkv(layout={"max_padding_fraction": 15})),
    _one("no regular expression", "options", LLAMA, *mkv(attention={"layers": {"[": "FIA"}})),
    _one(
        "endless repeat",
        "options",
        LLAMA,
        *mkv(attention={"layers": {"a{" + "9" * 20 + "}": "FIA"}}),
        says="repeats too often",
    ),
    _one(
        "deep nesting",
        "options",
        LLAMA,
        *mkv(attention={"layers": {"(" * 200 + ")" * 200: "FIA"}}),
        says="nested deeper",
    ),
    _one(
        "dtype of no draft's cache", "draft-dtype", LLAMA, *mkv(kv_cache={"draft_dtype": "float16"})
    ),
    _one(
        "dtype of ngram's cache",
        "draft-dtype",
        LLAMA,
        *spec(None, method="ngram"),
        *mkv(kv_cache={"draft_dtype": "float16"}),
    ),
    _one(
        "dtype of the cache of MLA",
        "backend",
        "{DeepSeek-V3}",
        *spec("{DeepSeek-V3}"),
        *mkv(kv_cache={"draft_dtype": "float16"}),
        says="the model's dtype",
    ),
)

DRAFTS = (
    _one("16 draft tokens", "tokens-per-step", LLAMA, *spec(DRAFT, 16), says=("17", "1 to 15")),
    _one("0 draft tokens", "speculation-tokens", LLAMA, *spec(DRAFT, 0)),
    _one("no number of tokens", "speculation-tokens", LLAMA, *spec(DRAFT, None)),
    _one("tokens as words", "speculation-tokens", LLAMA, *spec(DRAFT, "three")),
    _one("a list", "speculation-form", LLAMA, "--speculative-config", "[3]", says="a JSON object"),
    _one("model as a number", "speculation-form", LLAMA, "--speculative-config", '{"model": 3}'),
    _one("unknown method", "speculation-method", LLAMA, *spec(None, method="telepathy")),
    _one("method without model", "speculation-model", LLAMA, *spec(None, method="eagle3")),
    _one("tokens given twice", "speculation-twice", LLAMA, *spec(DRAFT), "--spec-tokens", "4"),
    _one("ranks in the draft", "speculation-ranks", LLAMA, *spec(DRAFT, tensor_parallel_size=2)),
    _one(
        "another vocabulary", "vocabulary", LLAMA, *spec("{Qwen3-0.6B}"), says=("151936", "128256")
    ),
    _one("the documented example", "vocabulary", "{DeepSeek-V3}", *spec("{gpt-oss-20b}")),
    _one("no own predictor", "mtp", LLAMA, *spec(None, method="mtp")),
    _one("a narrow head", "hidden-size", LLAMA, *spec("{eagle-narrow}", method="eagle")),
    _one("depths beyond", "head-depths", LLAMA, *spec("{eagle3-deep}", method="eagle3"), says="99"),
    _one(
        "eagle3 over DeepSeek-V4", "head-states", "{v4}", *spec("{eagle3-8x128}", method="eagle3")
    ),
    _one("M-RoPE draft", "draft-rope", LLAMA, *spec("{image-draft}"), says="M-RoPE"),
    _one("KDA target", "target-states", "{Kimi-Linear-48B-A3B}", *spec(None, method="ngram")),
    _one("KDA draft", "draft-states", LLAMA, *spec("{kimi-as-draft}"), says="KDA"),
    _one("Mamba1 draft", "draft-states", LLAMA, *spec("{mamba1}"), says="Mamba1"),
    _one(
        "draft without attention", "draft-states", LLAMA, *spec("{mamba-only}"), says="no attention"
    ),
    _one("recurrent head", "draft-states", LLAMA, *spec("{lfm2-draft}", method="eagle")),
    _one(
        "recurrent draft in parallel",
        "recurrent-draft-option",
        LLAMA,
        *spec("{lfm2-draft}", parallel_drafting=True),
        says="parallel_drafting",
    ),
    _one(
        "recurrent draft and a connector",
        "recurrent-draft-option",
        LLAMA,
        *spec("{lfm2-draft}"),
        "--kv-transfer-config",
        '{"kv_connector": "RecomputeCPUOffloadConnector", "kv_role": "kv_both"}',
        says="--kv-transfer-config",
    ),
    _one(
        "recurrent draft, prefix hits beside states",
        "recurrent-draft-option",
        "{LFM2-1.2B}",
        *spec("{LFM2-350M}"),
        "--enable-prefix-caching",
        "-dp",
        "2",
        says="--enable-prefix-caching",
    ),
    _one("draft over stages", "pipeline", LLAMA, *spec(DRAFT), "-pp", "2", says="first stages"),
    _one(
        "draft on fewer ranks",
        "draft-ranks",
        LLAMA,
        "-tp",
        "2",
        *spec(DRAFT, draft_tensor_parallel_size=1),
    ),
    _one(
        "head on other ranks",
        "draft-ranks",
        LLAMA,
        "-tp",
        "4",
        *spec("{eagle3-8x128}", method="eagle3", draft_tensor_parallel_size=2),
    ),
    _one("draft too long", "draft-length", LLAMA, *spec(DRAFT, max_model_len=10**9)),
    _one(
        "experts of the draft alone",
        "experts",
        LLAMA,
        *spec("{moe-draft}"),
        "-tp",
        "2",
        "--additional-config",
        '{"enable_flashcomm1": true}',
    ),
    _one("dflash with windows", "dflash", LLAMA, *spec("{window-head}", method="dflash")),
    _one(
        "dflash in contexts",
        "dflash",
        LLAMA,
        *spec("{llama-draft}", method="dflash"),
        "-tp",
        "2",
        "-dcp",
        "2",
        says="context parallelism",
    ),
)

PLANNED = (
    _one(
        "pattern of no layer",
        "pattern",
        LLAMA,
        *mkv(attention={"layers": {"(?i)LAYER.*": "FIA"}}),
        says=("matches no layer", "model.layers.0.self_attn.attn"),
    ),
    _one(
        "pattern of no layer of Qwen3.5",
        "pattern",
        "{qwen35}",
        *mkv(attention={"layers": {"(?i)LAYER.*": "FIA"}}),
        says=("matches no layer", "model.layers.3.self_attn.attn"),
    ),
    _one(
        "part of a name",
        "pattern",
        LLAMA,
        *mkv(attention={"layers": {r"layers\.3": "FIA"}}),
        says="put .* around it",
    ),
    _one(
        "contradictory patterns",
        "pattern",
        LLAMA,
        "--enforce-eager",
        *mkv(attention={"layers": {r".*attn\.at.*": "FIA", r".*ttn\.att.*": "FA3"}}),
        says="equally specific",
    ),
    _one(
        "pattern over another kind",
        "backend",
        "{DeepSeek-V3}",
        *mkv(attention={"layers": {".*": "FIA"}}),
        says="not mla. Possible: mla",
    ),
    _one("memory", "memory", LLAMA, "--kv-cache-memory-bytes", "100m", says="1025 blocks"),
    _one("blocks", "memory", LLAMA, "--num-gpu-blocks-override", "1000", says="gives 1000"),
    _one(
        "weights and cache over the device",
        "memory",
        LLAMA,
        "--gpu-memory-utilization",
        "0.1",
        says="6553.6 MiB",
    ),
    _one(
        "padding that no grouping keeps to",
        "layout",
        "{gemma-3-27b}",
        *spec("{gemma-draft}"),
        *mkv(layout={"max_padding_fraction": 0}),
    ),
)

ADAPTERS = (
    _one("adapters over an odd vocabulary", "lora-vocabulary", "{odd-vocabulary}", "--enable-lora"),
    _one("adapters that are not enabled", "lora", LLAMA, "--lora-modules", "a=/b"),
    _one("offloading", "kv-connector", LLAMA, "--kv-offloading-size", "1"),
    _one(
        "offloading inside of several",
        "kv-connector",
        LLAMA,
        "--kv-transfer-config",
        '{"kv_connector": "MultiConnector", "kv_role": "kv_both", "kv_connector_extra_config": '
        '{"connectors": [{"kv_connector": "OffloadingConnector", "kv_role": "kv_both"}]}}',
    ),
)

SEVERAL = (
    Mistake(
        "three at once",
        (LLAMA, *spec("{Qwen3-0.6B}", 20), "--kv-cache-dtype", "fp8"),
        ("kv-cache-dtype", "tokens-per-step", "vocabulary"),
        ("for 3 reasons",),
    ),
)

MISTAKES = (*COMMANDS, *MODELS, *NUMBERS, *OPTIONS, *DRAFTS, *PLANNED, *ADAPTERS, *SEVERAL)

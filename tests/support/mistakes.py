# SPDX-License-Identifier: Apache-2.0
"""Mistakes of users: a command, with what codes it is refused, and words of the message.

``{NAME}`` in a command is the folder of a model: one of tests/data/configs, or one of
``mistaken_models.CHANGED``.
"""

from __future__ import annotations

from tests.support.mistake import DRAFT, LLAMA, OWN_PROCESS, SPLIT, Mistake, mkv, one, spec
from tests.support.mistakes_of_families import FAMILIES
from tests.support.mistakes_of_giving_up import GIVING_UP
from tests.support.mistakes_of_offloading import OFFLOADING
from tests.support.mistakes_of_vllm_options import VLLM_OPTIONS
from tests.support.mistakes_of_windows import WINDOWS

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
    one("no such model", "model-config", "/nowhere/model", says="there is no file"),
    one("no model type", "model-config", "{nameless}", says="names no model_type"),
    one("-4 heads", "model-config", "{no-heads}", says="num_attention_heads is -4"),
    one("0 layers", "model-config", "{no-layers}", says="num_hidden_layers is 0"),
    one("text_config null", "model-config", "{null-text}", says="text_config is null"),
    one("no such draft", "draft-config", LLAMA, *spec("/nowhere"), says="there is no file"),
    one("draft with 0 layers", "draft-config", LLAMA, *spec("{no-layers}")),
    one("gptq", "quantization", "{gptq}", says=("gptq", "compressed-tensors")),
    one("awq draft", "quantization", LLAMA, *spec("{awq-draft}"), says="of the draft"),
    one("quantization asked", "quantization", LLAMA, "-q", "bitsandbytes"),
    one("quantization of the draft", "quantization", LLAMA, *spec(DRAFT, quantization="awq")),
    one("C8 in half", "cache-format", "{c8}", "--dtype", "half", says=("C8", "float16")),
    one(
        "C8 of a drafting layer",
        "cache-format",
        "{c8-mtp}",
        *spec(None, method="mtp"),
        says="in layer 28",
    ),
    one("fp8 weights", "weight-format", "{fp8}", says=("fp8", "Ascend A5")),
    one("heads of 72", "backend", "{heads-72}", says="head sizes are"),
    one("heads of Zamba2", "backend", "{zamba2}", says="160"),
    one("float32", "dtype", LLAMA, "--dtype", "float32", says="bfloat16"),
    one("DeepSeek-V4 in half", "dtype", "{v4}", *OWN_PROCESS, "--dtype", "half", says="is float16"),
)

NUMBERS = (
    one("0 ranks", "number", LLAMA, "-tp", "0", says="--tensor-parallel-size is 0"),
    one("share over 1", "number", LLAMA, "--gpu-memory-utilization", "1.5"),
    one("negative blocks", "number", LLAMA, "--num-gpu-blocks-override", "-3"),
    one("too long", "max-model-len", "{Qwen3-0.6B}", "--max-model-len", "1m"),
    one(
        "blocks of 200",
        "block-size",
        *("{LFM2-1.2B}", "--block-size", "200", "--max-num-seqs", "4"),
        says="multiples of 128",
    ),
    one(
        "step below requests",
        "step-size",
        LLAMA,
        "--max-num-batched-tokens",
        "64",
        "--max-num-seqs",
        "128",
    ),
    one(
        "nothing left by drafts",
        "step-size",
        LLAMA,
        *spec(DRAFT),
        "--max-num-batched-tokens",
        "128",
        "--max-num-seqs",
        "128",
    ),
    one("more ranks than devices", "devices", LLAMA, "-tp", "16", says="there are 8"),
    one("stages over devices", "devices", LLAMA, "-tp", "8", "-pp", "2"),
    one("copies over devices", "devices", LLAMA, "-tp", "4", "-dp", "4"),
    one("ranks that divide no heads", "heads", LLAMA, "-tp", "5", says="1, 2, 4, 8, 16, 32"),
    one("fp8 cache", "kv-cache-dtype", LLAMA, "--kv-cache-dtype", "fp8", says="leave"),
    one("fp8 cache with MLA", "kv-cache-dtype", "{DeepSeek-V3}", "--kv-cache-dtype", "fp8"),
    one("e5m2 cache", "kv-cache-dtype", LLAMA, "--kv-cache-dtype", "fp8_e5m2"),
)

OPTIONS = (
    one("FLASHINFER", "backend-name", LLAMA, "--attention-backend", "FLASHINFER"),
    one(
        "draft's backend unknown",
        "backend-name",
        LLAMA,
        *spec(DRAFT, attention_backend="TRITON_ATTN"),
        says="--speculative-config",
    ),
    one("backend of another kind", "backend", LLAMA, *mkv(attention={"target": "mla"})),
    one(
        "draft's backend of another kind",
        "backend",
        LLAMA,
        *spec(DRAFT),
        *mkv(attention={"draft": "sparse_mla"}),
        says="every attention layer of the draft",
    ),
    one(
        "flash_attention_3 in graphs",
        "backend",
        LLAMA,
        *mkv(attention={"target": "flash_attention_3"}),
        says="ACL graph",
    ),
    one("unknown key", "options", LLAMA, *mkv(atention={}), says="did you mean 'attention'?"),
    one("unknown backend", "options", LLAMA, *mkv(attention={"target": "FA9"})),
    one("options of a wrong type", "options", LLAMA, *mkv(layout=[])),
    one("not an object", "additional-config", LLAMA, "--additional-config", "mkv"),
    one("our key misspelt", "options", LLAMA, "--additional-config", '{"mkv-ascend": {}}'),
    one("blocks of at most 100", "options", LLAMA, *mkv(layout={"max_block_size": 100})),
    one("blocks without end", "options", LLAMA, *mkv(layout={"max_block_size": 10**30})),
    one("padding over 1", "options", LLAMA, *mkv(layout={"max_padding_fraction": 15})),
    one("no regular expression", "options", LLAMA, *mkv(attention={"layers": {"[": "FIA"}})),
    one(
        "endless repeat",
        "options",
        LLAMA,
        *mkv(attention={"layers": {"a{" + "9" * 20 + "}": "FIA"}}),
        says="repeats too often",
    ),
    one(
        "deep nesting",
        "options",
        LLAMA,
        *mkv(attention={"layers": {"(" * 200 + ")" * 200: "FIA"}}),
        says="nested deeper",
    ),
    one(
        "window of a token", "options", LLAMA, *mkv(drafting={"window": 1}), says="2 to 2147483647"
    ),
    one(
        "dtype of no draft's cache", "draft-dtype", LLAMA, *mkv(kv_cache={"draft_dtype": "float16"})
    ),
    one(
        "dtype of ngram's cache",
        "draft-dtype",
        LLAMA,
        *spec(None, method="ngram"),
        *mkv(kv_cache={"draft_dtype": "float16"}),
    ),
    one(
        "dtype of the cache of MLA",
        "backend",
        "{DeepSeek-V3}",
        *spec("{DeepSeek-V3}"),
        *mkv(kv_cache={"draft_dtype": "float16"}),
        says="the model's dtype",
    ),
)

DRAFTS = (
    one("16 draft tokens", "tokens-per-step", LLAMA, *spec(DRAFT, 16), says=("17", "1 to 15")),
    one("0 draft tokens", "speculation-tokens", LLAMA, *spec(DRAFT, 0)),
    one("no number of tokens", "speculation-tokens", LLAMA, *spec(DRAFT, None)),
    one("tokens as words", "speculation-tokens", LLAMA, *spec(DRAFT, "three")),
    one("a list", "speculation-form", LLAMA, "--speculative-config", "[3]", says="a JSON object"),
    one("model as a number", "speculation-form", LLAMA, "--speculative-config", '{"model": 3}'),
    one("unknown method", "speculation-method", LLAMA, *spec(None, method="telepathy")),
    one("method without model", "speculation-model", LLAMA, *spec(None, method="eagle3")),
    one("tokens given twice", "speculation-twice", LLAMA, *spec(DRAFT), "--spec-tokens", "4"),
    one("ranks in the draft", "speculation-ranks", LLAMA, *spec(DRAFT, tensor_parallel_size=2)),
    one(
        "another vocabulary", "vocabulary", LLAMA, *spec("{Qwen3-0.6B}"), says=("151936", "128256")
    ),
    one("the documented example", "vocabulary", "{DeepSeek-V3}", *spec("{gpt-oss-20b}")),
    one("no own predictor", "mtp", LLAMA, *spec(None, method="mtp")),
    one("a narrow head", "hidden-size", LLAMA, *spec("{eagle-narrow}", method="eagle")),
    one(
        "an EAGLE-3 head as MTP layers",
        "draft-class",
        *(LLAMA, *spec("{eagle3-8x128}", method="mtp")),
        says="an EAGLE-3 head",
    ),
    one("depths beyond", "head-depths", LLAMA, *spec("{eagle3-deep}", method="eagle3"), says="99"),
    one(
        "eagle3 over DeepSeek-V4",
        "head-states",
        *("{v4}", *OWN_PROCESS),
        *spec("{eagle3-8x128}", method="eagle3"),
    ),
    one("M-RoPE draft", "draft-rope", LLAMA, *spec("{image-draft}"), says="M-RoPE"),
    one("KDA target", "target-states", "{Kimi-Linear-48B-A3B}", *spec(None, method="ngram")),
    one(
        "target of states alone",
        "target-states",
        *("{mamba-only}", *spec(None, method="ngram")),
        says="no attention layer",
    ),
    one("KDA draft", "draft-states", LLAMA, *spec("{kimi-as-draft}"), says="KDA"),
    one("Mamba1 draft", "draft-states", LLAMA, *spec("{mamba1}"), says="Mamba1"),
    one(
        "draft without attention", "draft-states", LLAMA, *spec("{mamba-only}"), says="no attention"
    ),
    Mistake(
        "recurrent head",
        (LLAMA, *spec("{lfm2-draft}", method="eagle")),
        ("draft-class", "draft-states"),
        ("EagleLfm2ForCausalLM",),
    ),
    one(
        "recurrent draft in parallel",
        "recurrent-draft-option",
        LLAMA,
        *spec("{lfm2-draft}", parallel_drafting=True),
        says="parallel_drafting",
    ),
    one(
        "recurrent draft, a vocabulary that ranks split",
        "recurrent-draft-option",
        LLAMA,
        *spec("{lfm2-draft}"),
        *SPLIT,
        says="lmhead_tensor_parallel_size",
    ),
    one(
        "recurrent draft and a connector",
        "recurrent-draft-option",
        LLAMA,
        *spec("{lfm2-draft}"),
        "--kv-transfer-config",
        '{"kv_connector": "RecomputeCPUOffloadConnector", "kv_role": "kv_both"}',
        says="--kv-transfer-config",
    ),
    one(
        "recurrent draft, prefix hits beside states",
        "recurrent-draft-option",
        "{LFM2-1.2B}",
        *spec("{LFM2-350M}"),
        "--enable-prefix-caching",
        *("-dp", "2"),
        says="--enable-prefix-caching",
    ),
    one(
        "head on hidden states of a share of the tokens over stages",
        "pipeline",
        LLAMA,
        *spec("{eagle3-8x128}", method="eagle3"),
        *("-pp", "2"),
        *("-tp", "2"),
        "--additional-config",
        '{"enable_flashcomm1": true}',
        says="a share of the tokens",
    ),
    one(
        "drafting layers in turn over stages",
        "pipeline",
        "{step3.5}",
        *spec(None, method="mtp"),
        *("-pp", "2"),
        says="draft in turn",
    ),
    one(
        "draft on fewer ranks",
        "draft-ranks",
        LLAMA,
        *("-tp", "2"),
        *spec(DRAFT, draft_tensor_parallel_size=1),
    ),
    one(
        "head on other ranks",
        "draft-ranks",
        LLAMA,
        *("-tp", "4"),
        *spec("{eagle3-8x128}", method="eagle3", draft_tensor_parallel_size=2),
    ),
    one(
        "head with experts on one rank",
        "draft-ranks",
        "{Qwen3-Next-80B-A3B}",
        *("-tp", "2"),
        *spec(None, method="mtp", draft_tensor_parallel_size=1),
    ),
    one("draft too long", "draft-length", LLAMA, *spec(DRAFT, max_model_len=10**9)),
    one(
        "experts of the draft alone",
        "experts",
        LLAMA,
        *spec("{moe-draft}"),
        *("-tp", "2"),
        "--additional-config",
        '{"enable_flashcomm1": true}',
    ),
    one(
        "dflash in contexts",
        "dflash",
        LLAMA,
        *spec("{dflash}", method="dflash"),
        *("-tp", "2"),
        "-pcp",
        "2",
        says="leave prefill_context_parallel_size out",
    ),
)

PLANNED = (
    one(
        "pattern of no layer",
        "pattern",
        LLAMA,
        *mkv(attention={"layers": {"(?i)LAYER.*": "FIA"}}),
        says=("matches no layer", "model.layers.0.self_attn.attn"),
    ),
    one(
        "pattern of no layer of Qwen3.5",
        "pattern",
        "{qwen35}",
        *mkv(attention={"layers": {"(?i)LAYER.*": "FIA"}}),
        says=("matches no layer", "model.layers.3.self_attn.attn"),
    ),
    one(
        "part of a name",
        "pattern",
        LLAMA,
        *mkv(attention={"layers": {r"layers\.3": "FIA"}}),
        says="put .* around it",
    ),
    one(
        "contradictory patterns",
        "pattern",
        LLAMA,
        "--enforce-eager",
        *mkv(attention={"layers": {r".*attn\.at.*": "FIA", r".*ttn\.att.*": "FA3"}}),
        says="equally specific",
    ),
    one(
        "pattern over another kind",
        "backend",
        "{DeepSeek-V3}",
        *mkv(attention={"layers": {".*": "FIA"}}),
        says="not mla. Possible: mla",
    ),
    one("memory", "memory", LLAMA, "--kv-cache-memory-bytes", "100m", says="1025 blocks"),
    one("blocks", "memory", LLAMA, "--num-gpu-blocks-override", "1000", says="gives 1000"),
    one(
        "weights and cache over the device",
        "memory",
        LLAMA,
        "--gpu-memory-utilization",
        "0.1",
        says="6553.6 MiB",
    ),
    one(
        "padding that no grouping keeps to",
        "layout",
        "{gemma-3-27b}",
        *spec("{gemma-draft}"),
        *mkv(layout={"max_padding_fraction": 0}),
    ),
)

ADAPTERS = (
    one("adapters over an odd vocabulary", "lora-vocabulary", "{odd-vocabulary}", "--enable-lora"),
    one("adapters that are not enabled", "lora", LLAMA, "--lora-modules", "a=/b"),
)

SEVERAL = (
    Mistake(
        "three at once",
        (LLAMA, *spec("{Qwen3-0.6B}", 20), "--kv-cache-dtype", "fp8"),
        ("kv-cache-dtype", "tokens-per-step", "vocabulary"),
        ("for 3 reasons",),
    ),
)

MISTAKES = (
    *COMMANDS,
    *MODELS,
    *FAMILIES,
    *NUMBERS,
    *OPTIONS,
    *DRAFTS,
    *WINDOWS,
    *GIVING_UP,
    *VLLM_OPTIONS,
    *PLANNED,
    *ADAPTERS,
    *OFFLOADING,
    *SEVERAL,
)

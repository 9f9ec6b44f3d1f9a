# SPDX-License-Identifier: Apache-2.0
"""Mistakes with models whose layers follow from more than the numbers of plain attention."""

from __future__ import annotations

from importlib.util import find_spec

from tests.support import hosts
from tests.support.mistake import DRAFT, LLAMA, OWN_PROCESS, SPLIT, Mistake, mkv, one, spec

KNOWS_DEEPSEEK_V4 = find_spec("transformers.models.deepseek_v4") is not None

WHOLE = ("{v4-whole}", *OWN_PROCESS)

PLANNED = (
    one(
        "a layer of DeepSeek-V4 that is not there",
        "pattern",
        *WHOLE,
        *mkv(attention={"layers": {r"model\.layers\.43\..*": "fused_infer_attention"}}),
        says="matches no layer",
    ),
    one(
        "DeepSeek-V4 in little memory",
        "memory",
        *(*WHOLE, "--max-model-len", "32k", "--kv-cache-memory-bytes", "500m"),
        *spec("{v4-draft}"),
        says="one request of 32000 tokens",
    ),
)
"""Of caches of DeepSeek-V4, where they are planned."""

CAPPED = "computes logits_soft_cap (a soft cap on scores), and the tokens would be wrong"
ARGUMENTS = (
    one("a target with a soft cap", "backend", "{gemma2}", says=(CAPPED, "choose another target")),
    one(
        "a draft with a soft cap",
        "backend",
        *(LLAMA, *spec("{gemma2}")),
        says=(CAPPED, "a draft whose layers do not ask for it"),
    ),
    one(
        "3 draft tokens of 2 modules",
        "speculation-tokens",
        "{two-modules}",
        *spec(None, 3, method="mtp"),
        says=("2 modules", "up to 2, or a multiple", "write 2"),
    ),
    one("a target with ALiBi", "backend", "{bloom}", says="computes alibi_slopes (ALiBi"),
)
"""Of layers that predict, and of arguments of attention layers that no backend computes."""

KEPT_STATES = (
    one(
        "steps below a block of kept states",
        "step-size",
        *("{qwen3.5}", "--enable-prefix-caching", "--max-num-seqs", "4"),
        *("--max-num-batched-tokens", "256"),
        says=("would wait for ever", "1536 tokens or more"),
    ),
    one(
        "steps below a block of kept states of convolutions",
        "step-size",
        *("{LFM2-1.2B}", "--enable-prefix-caching", "--max-num-seqs", "4"),
        *("--block-size", "1024", "--max-num-batched-tokens", "1000"),
        says=("would wait for ever", "1024 tokens or more"),
    ),
    one(
        "chunks below a block of kept states",
        "step-size",
        *("{qwen3.5}", "--enable-prefix-caching", "--long-prefill-token-threshold", "128"),
        says="into chunks of 128",
    ),
)
"""Of prefix caching beside states, where a step cannot end within a block."""

CODE = (
    one(
        "the configuration is code",
        "model-config",
        "{mimo-v2}",
        says=("no configuration of type mimo_v2_flash", "add --trust-remote-code"),
    ),
)
"""Of a family whose configuration the host does not have."""

FAMILIES = (
    *ARGUMENTS,
    one(
        "Granite 4 over stages",
        "pipeline",
        "{granite4}",
        *spec(DRAFT),
        *("-pp", "2"),
        says="weights of all stages",
    ),
    *(CODE if hosts.ADAPTER.RULES.configurations_as_code else ()),
    *(PLANNED if hosts.PLANS_DEEPSEEK_V4 else ()),
    *(KEPT_STATES if hosts.STEPS_REACH_KEPT_STATES else ()),
    one(
        "a ratio of 8",
        "model-config",
        *("{v4-of-8}", *OWN_PROCESS),
        # A transformers that knows the family refuses it first.
        says="KeyError: 8" if KNOWS_DEEPSEEK_V4 else "compress_ratios has 8 for layer 2",
    ),
    one(
        "names without the language model",
        "pattern",
        "{qwen3.5}",
        *mkv(attention={"layers": {r"model\.layers\..*": "fused_infer_attention"}}),
        says="matches no layer",
    ),
    one(
        "no block for requests of Qwen3.5 of any length",
        "memory",
        *("{qwen3.5}", "--max-model-len", "auto", "--num-gpu-blocks-override", "1"),
        says="gives 1",
    ),
    one(
        "Qwen3.5 in little memory",
        "memory",
        *("{qwen3.5}", "--kv-cache-memory-bytes", "1g"),
        *spec("{Qwen3-0.6B}", max_model_len=40960),
        says="KV groups",
    ),
    one("a K-EXAONE of the other version", "family", "{k-exaone}", says="a K-EXAONE"),
    one("a MiniMax-M2 that drafts", "family", LLAMA, *spec("{minimax-m2}"), says="a MiniMax-M2"),
    one("attention in chunks", "chunks", "{chunks}", says="in chunks of 8192 tokens"),
    one("chunks in the draft", "chunks", LLAMA, *spec("{chunks}"), says="in chunks of 8192"),
    one("M-RoPE in the draft", "draft-rope", "{qwen3.5}", *spec("{qwen3-vl}"), says="M-RoPE"),
    one(
        "a backend of another kind for images' model",
        "backend",
        "{qwen3-vl}",
        *mkv(attention={"layers": {r"language_model\..*\.7\..*": "mla"}}),
        says="language_model.model.layers.7.self_attn.attn",
    ),
    one(
        "a layer of dflash that is not there",
        "pattern",
        "{gpt-oss-20b}",
        *spec("{dflash}", method="dflash"),
        *mkv(attention={"layers": {r"draft_model\..*": "fused_infer_attention"}}),
        says="matches no layer",
    ),
    one(
        "dflash, a vocabulary that ranks split",
        "dflash",
        LLAMA,
        *spec("{dflash}", method="dflash"),
        *SPLIT,
        says="lmhead_tensor_parallel_size",
    ),
    Mistake(
        "a misspelt field of a draft",
        (LLAMA, *spec("{llama-draft}", num_speculative_tokns=3)),
        (),
        ("'num_speculative_tokns'; did you mean num_speculative_tokens?",),
    ),
    Mistake(
        "a field that vLLM does not have",
        (LLAMA, "--compilation-config", '{"cudagraph_mod": "NONE"}'),
        (),
        ("'cudagraph_mod'; did you mean cudagraph_mode?",),
    ),
    one(
        "dflash in little memory",
        "memory",
        *("{gpt-oss-20b}", "--kv-cache-memory-bytes", "100m"),
        *spec("{dflash}", method="dflash"),
        says="KV groups",
    ),
    one(
        "a draft model without padding",
        "draft-batch",
        LLAMA,
        *spec(DRAFT, disable_padded_drafter_batch=True),
    ),
    one(
        "prompts without their last layers",
        "fast-prefill",
        *("{gpt-oss-20b}", "--kv-sharing-fast-prefill"),
        *spec("{dflash}", method="dflash"),
        says="hidden states of prompts",
    ),
)

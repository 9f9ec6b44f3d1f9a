# SPDX-License-Identifier: Apache-2.0
"""Commands drawn at random: a published model, ranks, a draft by some method, options.

In the words of ``tests/data/commands.json``.
"""

from __future__ import annotations

import json
import random

TARGETS = (
    *("Llama-3.1-8B-Instruct", "Llama-3.3-70B-Instruct", "Qwen2.5-72B-Instruct", "Qwen3-0.6B"),
    *("Qwen3-8B", "Qwen3-14B", "Qwen3-32B", "Qwen3-30B-A3B", "Qwen3-Next-80B-A3B-Instruct"),
    *("DeepSeek-V2-Lite-Chat", "DeepSeek-V3-bf16", "gpt-oss-20b", "gpt-oss-20b-bf16"),
    *("granite-4.0-h-small", "granite-4.0-h-1b", "Nemotron-H-8B", "gemma-3-27b-it", "LFM2-1.2B"),
    *("Mixtral-8x7B-Instruct-v0.1", "GLM-4.5-Air"),
)
DRAFTS = (
    *("Llama-3.2-1B-Instruct", "Qwen2.5-0.5B-Instruct", "Qwen3-0.6B", "Qwen3-1.7B"),
    *("EAGLE3-LLaMA3.1-Instruct-8B", "Qwen3-32B_eagle3", "granite-4.0-h-1b", "LFM2-1.2B"),
)
METHODS = ("draft_model", "eagle3", "eagle", "mtp", "ngram", "suffix", "dflash")
OPTIONS: tuple[tuple[str, ...], ...] = (
    ("--enforce-eager",),
    ("--async-scheduling",),
    ("--no-async-scheduling",),
    ("--no-enable-prefix-caching",),
    ("--no-enable-chunked-prefill",),
    ("--enable-expert-parallel",),
    ("--enable-lora",),
    ("--max-model-len", "4096"),
    ("--max-model-len", "auto"),
    ("--max-model-len", "10m"),
    ("--max-num-seqs", "4"),
    ("--max-num-batched-tokens", "64"),
    ("--max-num-batched-tokens", "16384"),
    ("--block-size", "64"),
    ("--block-size", "256"),
    ("--dtype", "float16"),
    ("--dtype", "float32"),
    ("--kv-cache-dtype", "fp8"),
    ("--kv-cache-memory-bytes", "2g"),
    ("--gpu-memory-utilization", "0.2"),
    ("--gpu-memory-utilization", "1.2"),
    ("--num-gpu-blocks-override", "64"),
    ("--quantization", "ascend"),
    ("--compilation-config", '{"cudagraph_mode": "FULL"}'),
    ("--compilation-config", '{"cudagraph_mode": "FULL_DECODE_ONLY"}'),
    ("--compilation-config", '{"cudagraph_mode": "PIECEWISE"}'),
    ("--additional-config", '{"enable_flashcomm1": true}'),
    ("--additional-config", '{"mkv_ascend": {"attention": {"draft": "FIA"}}}'),
    ("--additional-config", '{"mkv_ascend": {"layout": {"shared_pages": false}}}'),
    ("--disable-hybrid-kv-cache-manager",),
    ("--load-format", "dummy"),
    ("--api-server-count", "2"),
    ("--enable-auto-tool-choice", "--tool-call-parser", "hermes"),
)
RANKS = (1, 1, 1, 2, 2, 4, 8)


def drawn(number: int) -> list[str]:
    """Words behind ``vllm serve``: the same ones for one number."""
    draw = random.Random(number)
    words = [draw.choice(TARGETS), "-tp", str(draw.choice(RANKS))]
    for option in ("-pp", "-dp", "-dcp"):
        if draw.random() < 0.12:
            words += [option, "2"]
    if draw.random() < 0.7:
        words += _draft(draw)
    for chosen in draw.sample(OPTIONS, draw.choice((0, 0, 1, 1, 2, 3))):
        words += chosen
    return words


def _draft(draw: random.Random) -> list[str]:
    method = draw.choice(METHODS)
    tokens = draw.choice((1, 2, 3, 3, 5, 8, 15, 16))
    if method == "ngram":
        given = {"method": method, "num_speculative_tokens": tokens, "prompt_lookup_max": 4}
        return ["--speculative-config", json.dumps(given)]
    own = method in ("mtp", "suffix")
    return [f"draft:{method}:{tokens}:{'' if own else draw.choice(DRAFTS)}"]

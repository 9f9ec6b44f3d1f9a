# SPDX-License-Identifier: Apache-2.0
"""Pairs of published models whose grouping is to be proven best: every family, at real depth."""

from __future__ import annotations

from dataclasses import dataclass

from mkv_ascend.layout.requirements import Request


@dataclass(frozen=True)
class PublishedPair:
    """``tokens``: of the request; ``ranks``: of tensor parallelism. Three draft tokens a step."""

    target: str
    draft: str
    tokens: int = 32_768
    ranks: int = 1

    @property
    def name(self) -> str:
        """Both names, with what is not usual."""
        ranks = f", {self.ranks} ranks" if self.ranks > 1 else ""
        return f"{self.target} + {self.draft} ({self.tokens // 1024}K{ranks})"

    @property
    def request(self) -> Request:
        """The request that the grouping is measured with."""
        return Request(self.tokens, tokens_per_step=4)


PAIRS = (
    # Without a better draft of their own: what users pair.
    PublishedPair("Qwen3-32B", "Qwen3-0.6B"),
    PublishedPair("Qwen3-235B-A22B", "Qwen3-1.7B", ranks=4),
    PublishedPair("Qwen3-30B-A3B", "eagle3-4x128"),
    PublishedPair("Qwen3-8B", "dflash-8x128"),
    PublishedPair("Llama-3.3-70B", "Llama-3.2-1B", ranks=8),
    PublishedPair("Llama-3.1-8B", "Gemma-3-1b"),
    PublishedPair("Llama-4-Scout", "Llama-3.2-1B", 131_072),
    PublishedPair("Llama-4-Scout", "eagle3-8x128"),
    PublishedPair("Gemma-2-27B", "Gemma-2-2B", 8_192),
    PublishedPair("Gemma-3-27b", "Gemma-3-1b"),
    PublishedPair("Gemma-3-27b", "Gemma-3-1b", 8_192),
    PublishedPair("Gemma-3-27b", "Gemma-3-4b", 131_072),
    PublishedPair("Gemma-3-12b", "Gemma-3-270m"),
    PublishedPair("Gemma-4-31B", "Gemma-4-E2B"),
    PublishedPair("Gemma-4-26B-A4B", "Gemma-4-E2B", 131_072),
    PublishedPair("Gemma-4-12B", "eagle3-8x128"),
    PublishedPair("GPT-OSS-120b", "GPT-OSS-20b"),
    PublishedPair("GPT-OSS-120b", "eagle3-8x128"),
    PublishedPair("GLM-4.5", "GLM-4-9B", ranks=8),
    PublishedPair("GLM-4.5-Air", "eagle3-8x128"),
    PublishedPair("GLM-4.7-Flash", "GLM-4-9B"),
    PublishedPair("GLM-5", "GLM-4-9B", ranks=8),
    PublishedPair("MiniMax-M2", "eagle3-8x128"),
    PublishedPair("MiniMax-M2", "Gemma-3-1b"),
    PublishedPair("Hunyuan-A13B", "Hunyuan-1.8B"),
    PublishedPair("Mistral-Small-24B", "Qwen3-0.6B"),
    PublishedPair("Seed-OSS-36B", "Qwen3-0.6B"),
    PublishedPair("ERNIE-4.5-21B-A3B", "ERNIE-4.5-0.3B"),
    PublishedPair("Command-A", "Command-R7B"),
    PublishedPair("Command-R7B", "Granite-4.0-H-Tiny"),
    PublishedPair("Olmo-3-32B", "Qwen3-0.6B"),
    PublishedPair("EXAONE-4.0-32B", "EXAONE-4.0-1.2B"),
    PublishedPair("MiMo-V2-Flash", "MiMo-V2-Flash-mtp"),
    PublishedPair("MiMo-V2-Flash", "Qwen3-0.6B"),
    PublishedPair("Step-3.5-Flash", "Step-3.5-Flash-mtp"),
    PublishedPair("Step-3.5-Flash", "Gemma-3-1b", 131_072),
    PublishedPair("DeepSeek-V2-Lite", "Qwen3-0.6B"),
    PublishedPair("DeepSeek-V2", "DeepSeek-V2-Lite"),
    PublishedPair("DeepSeek-V3", "DeepSeek-V3-mtp"),
    PublishedPair("DeepSeek-V3", "GPT-OSS-20b"),
    PublishedPair("DeepSeek-V3", "Gemma-3-27b", 1_024, ranks=8),
    PublishedPair("DeepSeek-V3.2", "Gemma-3-27b", 8_192),
    PublishedPair("DeepSeek-V3.2", "Gemma-2-27B", 8_192),
    PublishedPair("DeepSeek-V3.2", "DeepSeek-V2-Lite"),
    PublishedPair("DeepSeek-V4-Flash", "Llama-3.2-1B"),
    PublishedPair("DeepSeek-V4-Flash", "Gemma-3-1b", 131_072),
    PublishedPair("DeepSeek-V4-Pro", "GPT-OSS-20b"),
    PublishedPair("Kimi-K2", "eagle3-8x128", ranks=8),
    PublishedPair("LongCat-Flash", "Qwen3-0.6B"),
    PublishedPair("openPangu-Ultra-718B", "Qwen3-1.7B", ranks=8),
    PublishedPair("Qwen3-Next-80B-A3B", "Qwen3-Next-80B-A3B-mtp"),
    PublishedPair("Qwen3-Next-80B-A3B", "Gemma-3-1b"),
    PublishedPair("Qwen3-Next-80B-A3B", "Qwen3.5-0.8B"),
    PublishedPair("Qwen3.5-397B-A17B", "Qwen3.5-0.8B", ranks=2),
    PublishedPair("Qwen3.5-27B", "Qwen3.5-0.8B"),
    PublishedPair("Kimi-Linear-48B-A3B", "Qwen3-0.6B"),
    PublishedPair("Kimi-Linear-48B-A3B", "DeepSeek-V2-Lite"),
    PublishedPair("Granite-4.0-H-Small", "Granite-4.0-H-Tiny"),
    PublishedPair("Granite-4.0-H-Small", "eagle3-8x128"),
    PublishedPair("LFM2-8B-A1B", "LFM2-350M"),
    PublishedPair("LFM2-1.2B", "Gemma-3-270m"),
    PublishedPair("Nemotron-H-8B", "Llama-3.2-1B", 8_192),
    PublishedPair("Nemotron-3-Nano-30B-A3B", "LFM2-1.2B"),
    PublishedPair("Nemotron-3-Nano-30B-A3B", "Nemotron-3-Nano-30B-A3B"),
)
"""Figures: ``python -m benchmarks.kv_layout``."""

# SPDX-License-Identifier: Apache-2.0
"""Mistakes with options that vLLM has on other devices, or without drafts; see ``mistakes``."""

from __future__ import annotations

from tests.support.mistake import DRAFT, LLAMA, one, spec

OWN = ("--logits-processors", "my_package.processors:Shout")

VLLM_OPTIONS = (
    one(
        "logits processors beside a draft",
        "logits-processors",
        *(LLAMA, *OWN),
        *spec(DRAFT),
        says="tokens that it verifies",
    ),
    one(
        "logits processors beside lookups",
        "logits-processors",
        *(LLAMA, *OWN),
        *spec(None, method="ngram"),
        says="tokens that it verifies",
    ),
    one(
        "experts that come and go",
        "host-option",
        *(LLAMA, "--enable-elastic-ep"),
        says="--enable-elastic-ep is given",
    ),
)

# SPDX-License-Identifier: Apache-2.0
"""Mistakes with what is done to logits; see ``mistakes``."""

from __future__ import annotations

from tests.support.mistake import DRAFT, LLAMA, one, spec

OWN = ("--logits-processors", "my_package.processors:Shout")

SAMPLING = (
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
)

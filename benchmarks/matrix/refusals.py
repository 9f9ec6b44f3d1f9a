# SPDX-License-Identifier: Apache-2.0
"""Refusals that are known: by whom, and the reason that holds on real hardware.

A cell counts as refused only if the engine's last words are in this table; an engine that ends in
any other way fails. So a crash never passes for a refusal.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Refusal:
    """``pattern``: regular expression that the engine's message matches; ``reason``: why it is so,
    whatever the device."""

    pattern: str
    reason: str


OURS = (
    Refusal(
        r"the draft keeps a recurrent state in",
        "a recurrent state would have to be taken back where tokens are rejected",
    ),
    Refusal(
        r"layers of Kimi delta attention \(KDA\), whose state mkv_ascend cannot take back",
        "vLLM 0.23.0's layers of Kimi delta attention keep one state of a request, and none for "
        "each draft token",
    ),
    Refusal(
        r"states are kept at the end of each block of .*",
        "a step or chunk is shorter than a block at whose end states are kept for prefix hits",
    ),
    Refusal(
        r"layers hand on .* where a head takes one",
        "heads of eagle3 are trained on one hidden state of a layer, and DeepSeek-V4's layers hand "
        "on several residual streams",
    ),
    Refusal(
        r"is a LongCat-Flash: its layers have two attentions each",
        "vllm-ascend 0.30.0rc2 does not read the names of two attentions of a layer, and its "
        "router does not know experts without matrices",
    ),
    Refusal(
        r"is a Step-3\.5 in (torch\.)?float(32|16): the fused kernel",
        "vllm-ascend 0.30.0rc2's fused kernel for queries and keys holds them in bfloat16",
    ),
    Refusal(
        r"is a K-EXAONE of the first version, whose class vLLM 0\.30\.0 does not have",
        "vLLM 0.30.0 has the class of K-EXAONE by the name of the second version alone",
    ),
)

VLLM = (
    Refusal(
        r"Model Runner V2 does not yet support: speculative method",
        "vLLM's model runner V2 does not have this method; V1 has it",
    ),
    Refusal(
        r"pip install arctic-inference",
        "vLLM's suffix decoding is the package arctic-inference, which is not installed",
    ),
    Refusal(
        r"Model does not support EAGLE3 interface",
        "vLLM's class of the target does not hand out hidden states of its layers",
    ),
)

STOCK = (
    Refusal(
        r"Invalid kv_cache_dtype: float32",
        "stock takes no float32 cache for DSA, and only in float32 can tokens be compared one by "
        "one; in bfloat16 it starts with an MLA draft, and ends in an assertion with dense or "
        "windowed ones",
    ),
    Refusal(
        r"All drafting layers should belong to the same kv cache group",
        "vllm-ascend drafts with layers of one KV group",
    ),
    Refusal(
        r"The page size of the layer is not divisible by the maximum page size",
        "vLLM groups layers of one page size, or of pages that divide each other",
    ),
)

REFUSALS = (*OURS, *VLLM, *STOCK)


def known_refusal(log: str) -> Refusal | None:
    """The refusal that the end of ``log`` holds, if it is one of the known ones."""
    for refusal in REFUSALS:
        if re.search(refusal.pattern, log):
            return refusal
    return None


def last_words(log: str, limit: int = 300) -> str:
    """The last error that ``log`` names, in one line of at most ``limit`` characters."""
    named = re.compile(
        r"^(?:\([^)]*\) )?(?:ERROR .*?\] )?((?:\w+\.)*\w*(?:Error|Refused|Exception)\b.*)"
    )
    found = [match[1] for match in map(named.match, log.splitlines()) if match]
    lines = found or [line for line in log.splitlines() if line.strip()]
    words = lines[-1].strip() if lines else "it printed nothing"
    if "validation error" in words:
        # Pydantic says in a later line what is wrong.
        below = [line for line in log[log.rindex(words) :].splitlines() if line.startswith("  ")]
        words = re.sub(r" \[type=.*", "", below[0].strip()) if below else words
    if words.endswith("reasons:"):
        codes = re.findall(r"^\s*- (\[[^\]\s]+\])", log, re.MULTILINE)
        words = f"{words} {', '.join(dict.fromkeys(codes))}"
    return words[:limit]

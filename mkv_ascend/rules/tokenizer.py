# SPDX-License-Identifier: Apache-2.0
"""How prompts become tokens, which vLLM looks up behind its configuration."""

from __future__ import annotations

from collections.abc import Iterator

from mkv_ascend import host_versions
from mkv_ascend.rules.facts import Facts
from mkv_ascend.rules.refusal import Refusal


def mode(facts: Facts) -> Iterator[Refusal]:
    """A mode that vLLM has no tokenizer for, or none that renders chats."""
    known = facts.tokenizer_modes
    if known and facts.tokenizer_mode not in known:
        yield Refusal(
            "tokenizer",
            f"--tokenizer-mode is {facts.tokenizer_mode}, for which {host_versions.vllm()} has no "
            "tokenizer",
            ", ".join(sorted(known)),
            "choose one of these, or leave --tokenizer-mode out",
        )


CHECKS = (mode,)

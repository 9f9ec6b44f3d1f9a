# SPDX-License-Identifier: Apache-2.0
"""``--disable-hybrid-kv-cache-manager``, with which all layers keep what one kind of layer keeps.

vLLM lets layers with windows keep all keys then. States have no such other form, and neither have
DeepSeek-V4's caches; vLLM says so when models are loaded.
"""

from __future__ import annotations

from collections.abc import Iterator

from mkv_ascend.checks.facts import ServeFacts
from mkv_ascend.checks.refusal import Refusal

__all__ = ["CHECKS"]


def one_kind_of_cache(facts: ServeFacts) -> Iterator[Refusal]:
    """Layers of kinds that vLLM cannot make one of, in either model or between both."""
    if not facts.engine.get("disable_hybrid_kv_cache_manager"):
        return
    speculation, draft = facts.speculation, facts.draft
    models = [facts.target]
    if draft is not None and speculation is not None and speculation.method == "draft_model":
        models.append(draft)
    for model in models:
        if model.is_compressed:
            kind = "caches of DeepSeek-V4's kinds"
        elif model.attends_beside_states:
            kind = f"states ({model.recurrent}) beside keys"
        else:
            continue
        yield Refusal(
            "layout",
            f"--disable-hybrid-kv-cache-manager is given, and the {model.role} {model.name} keeps "
            f"{kind}: vLLM cannot make one kind of cache of them",
            "the option with models whose layers attend, to all tokens or to windows",
            "leave --disable-hybrid-kv-cache-manager out",
        )


CHECKS = (one_kind_of_cache,)

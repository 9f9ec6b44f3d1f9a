# SPDX-License-Identifier: Apache-2.0
"""A draft that is asked for as a model of its own keeps its architecture.

vLLM 0.23.0 reads every draft's configuration through ``SpeculativeConfig.hf_config_override``. That
makes of some families (Qwen3-Next, Qwen3.5, DeepSeek-V3, Nemotron-H and others) their MTP heads,
and the method becomes ``mtp``, whatever was asked for.
"""

from __future__ import annotations

import functools
from typing import Any

from mkv_ascend.adapters.guards import expect, replaced

PATCH = "architecture of a draft model"


def install() -> None:
    """Wrap ``SpeculativeConfig.__post_init__``. Idempotent."""
    from vllm.config.speculative import SpeculativeConfig

    original = SpeculativeConfig.__post_init__
    if hasattr(original, "mkv_ascend_original"):
        return
    expect(
        "hf_config_override" in original.__code__.co_names,
        PATCH,
        "SpeculativeConfig.__post_init__ does not read hf_config_override",
    )

    @functools.wraps(original)
    def wrapped(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self.method != "draft_model":
            return original(self, *args, **kwargs)
        with replaced(SpeculativeConfig, "hf_config_override", staticmethod(kept)):
            return original(self, *args, **kwargs)

    wrapped.mkv_ascend_original = original  # type: ignore[attr-defined]
    SpeculativeConfig.__post_init__ = wrapped


def kept(hf_config: Any) -> Any:
    """``hf_config`` as it is."""
    return hf_config

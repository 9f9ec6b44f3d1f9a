# SPDX-License-Identifier: Apache-2.0
"""A draft that is asked for as a model of its own keeps its architecture.

vLLM 0.23.0 reads every draft's configuration through ``SpeculativeConfig.hf_config_override``. That
makes of some families (Qwen3-Next, Qwen3.5, DeepSeek-V3, Nemotron-H and others) their MTP heads,
and the method becomes ``mtp``, whatever was asked for.
"""

from __future__ import annotations

from typing import Any

from mkv_ascend.adapters.patching import patch, replaced


@patch(
    name="architecture of a draft model",
    target="vllm.config.speculative:SpeculativeConfig.__post_init__",
    reads=("vllm.config.speculative:SpeculativeConfig.hf_config_override",),
    writes=("hf_config_override",),
    why="It makes an MTP head of every draft whose family has one (Qwen3-Next, Qwen3.5, "
    "DeepSeek-V3, Nemotron-H), also where the method asked for is draft_model: such a model cannot "
    "be a draft of its own.",
    until="vLLM overrides a draft's architecture for the method mtp only",
    test="tests/emulated/recurrent/test_recurrent_drafts.py",
)
def keep_the_architecture(original: Any, config: Any, *args: Any, **kwargs: Any) -> Any:
    """``SpeculativeConfig.__post_init__``, without the override for the method draft_model."""
    if config.method != "draft_model":
        return original(config, *args, **kwargs)
    with replaced(type(config), "hf_config_override", staticmethod(unchanged)):
        return original(config, *args, **kwargs)


def unchanged(hf_config: Any) -> Any:
    """``hf_config`` as it is."""
    return hf_config

# SPDX-License-Identifier: Apache-2.0
"""A draft that is asked for as a model of its own keeps its architecture.

vLLM reads every draft's configuration through ``SpeculativeConfig.hf_config_override``. That
makes of some families (Qwen3-Next, Qwen3.5, DeepSeek-V3, Nemotron-H and others) their MTP heads,
and the method becomes ``mtp``, whatever was asked for and whether there are layers of such a head.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any

from mkv_ascend.adapters.common.drafting.records import DRAFT_CONFIG
from mkv_ascend.adapters.patching import Patch, replaced

keep_the_architecture = Patch(DRAFT_CONFIG)
"""Only models with prediction layers become heads."""


@keep_the_architecture.also(target="vllm.config.speculative:SpeculativeConfig.__post_init__")
def _initialise(original: Any, config: Any, *args: Any, **kwargs: Any) -> Any:
    """``SpeculativeConfig.__post_init__``; only models with prediction layers become heads.

    With the method draft_model none does. Without a method, the target's own checkpoint means its
    head, and ``check`` goes by the same rule (``checks/speculation.py``).
    """
    names_target = config.target_model_config and config.model == config.target_model_config.model
    if config.method not in (None, "draft_model") or (config.method is None and names_target):
        return original(config, *args, **kwargs)
    owner = type(config)
    override = unchanged
    if config.method is None:
        override = functools.partial(as_head_if_it_has_one, owner.hf_config_override)
    with replaced(owner, "hf_config_override", staticmethod(override)):
        return original(config, *args, **kwargs)


def unchanged(hf_config: Any) -> Any:
    """``hf_config`` as it is."""
    return hf_config


def as_head_if_it_has_one(override: Callable[[Any], Any], hf_config: Any) -> Any:
    """``hf_config`` as ``override`` makes it, or as it is if that is a head without layers.

    Args:
        override: may change its argument.
    """
    overridden = override(copy.deepcopy(hf_config))
    return overridden if getattr(overridden, "n_predict", 1) else hf_config

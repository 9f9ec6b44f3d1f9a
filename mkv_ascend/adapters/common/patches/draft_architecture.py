# SPDX-License-Identifier: Apache-2.0
"""A draft that is asked for as a model of its own keeps its architecture.

vLLM reads every draft's configuration through ``SpeculativeConfig.hf_config_override``. That
makes of some families (Qwen3-Next, Qwen3.5, DeepSeek-V3, Nemotron-H and others) their MTP heads,
and the method becomes ``mtp``, whatever was asked for and whether there are layers of such a head.

Of a head of several modules the first one makes each token of a proposal. vLLM 0.23.0 and
vllm-ascend build and load the others, give them caches, and never run them.

vLLM reads the configuration of a target's own layers again, without ``--hf-overrides``. Where these
lengthen the context, the layers would rotate as without them, and draft nothing of use behind the
length of config.json.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any

from mkv_ascend.adapters.common.drafting.records import DRAFT_CONFIG
from mkv_ascend.adapters.common.patches.padded_vocabulary import ROWS, rows_of_files
from mkv_ascend.adapters.logging import get_logger
from mkv_ascend.adapters.patching import Patch, replaced

logger = get_logger(__name__)

keep_the_architecture = Patch(DRAFT_CONFIG)
"""Only models with prediction layers become heads, and of their modules the first one is built."""

MODULE_COUNTS = ("num_nextn_predict_layers", "mtp_num_hidden_layers")
"""Names that configurations have for the number of a head's modules."""


@keep_the_architecture.also(target="vllm.config.speculative:SpeculativeConfig.__post_init__")
def _initialise(original: Any, config: Any, *args: Any, **kwargs: Any) -> None:
    """``SpeculativeConfig.__post_init__``; only models with prediction layers become heads.

    With the method draft_model none does. Without a method, the target's own checkpoint means its
    head.
    """
    _read_draft(original, config, *args, **kwargs)
    pad_as_the_target(config)
    if config.method == "mtp" and not config.use_step3p5_mtp():
        keep_first_module(config.draft_model_config)
    if config.method == "mtp" and _names_target(config):
        rotate_as_the_target(config)


def _names_target(config: Any) -> bool:
    target = config.target_model_config
    return bool(target) and config.model == target.model


def _read_draft(original: Any, config: Any, *args: Any, **kwargs: Any) -> None:
    if config.method not in (None, "draft_model") or (
        config.method is None and _names_target(config)
    ):
        original(config, *args, **kwargs)
        return
    owner = type(config)
    override = unchanged
    if config.method is None:
        override = functools.partial(as_head_if_it_has_one, owner.hf_config_override)
    with replaced(owner, "hf_config_override", staticmethod(override)):
        original(config, *args, **kwargs)


def keep_first_module(draft: Any) -> None:
    """Let a head of several modules have the first one alone: the others are not loaded.

    Step-3.5's modules run in turn, so that they stay.

    Args:
        draft: vLLM's ``ModelConfig`` of the head.
    """
    for found in (draft.hf_config, draft.hf_text_config):
        for name in MODULE_COUNTS:
            count = getattr(found, name, None)
            if isinstance(count, int) and count > 1:
                found.update({name: 1})
                logger.warning(
                    "%s has %d modules of multi-token prediction. The first one drafts each token "
                    "of a proposal; the others are not loaded.",
                    draft.model,
                    count,
                )


def rotate_as_the_target(config: Any) -> None:
    """Give a target's own layers its rotary parameters and, unless one is asked for, its length.

    Args:
        config: vLLM's ``SpeculativeConfig`` of a target that drafts by layers of its own.
    """
    target, draft = config.target_model_config, config.draft_model_config
    rope = getattr(target.hf_text_config, "rope_parameters", None)
    if rope == getattr(draft.hf_text_config, "rope_parameters", None):
        return
    draft.hf_text_config.update({"rope_parameters": copy.deepcopy(rope)})
    if config.max_model_len is None:
        draft.max_model_len = target.max_model_len


def pad_as_the_target(config: Any) -> None:
    """Give a draft model the target's number of rows, where only padding differs.

    Args:
        config: vLLM's ``SpeculativeConfig``.
    """
    rows = rows_of_files(config)
    if rows is not None:
        target, draft = config.target_model_config, config.draft_model_config
        draft.hf_text_config.update({ROWS: rows, "vocab_size": target.get_vocab_size()})
        draft.model_arch_config = draft.get_model_arch_config()


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

# SPDX-License-Identifier: Apache-2.0
"""What a draft's configuration is read as: its architecture, and rows of its embeddings."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from mkv_ascend.adapters.common.drafting.records import DRAFT_CONFIG
from mkv_ascend.adapters.logging import get_logger
from mkv_ascend.adapters.patching import Patch, replaced

if TYPE_CHECKING:
    from vllm.config import ModelConfig, SpeculativeConfig


# Draft models with the target's tokenizer and another number of rows in their embeddings.
#
# Models of one family pad one tokenizer to different sizes: Qwen2.5-72B has 152,064 rows, its
# 0.5B 151,936; Gemma-3-27b 262,208, its 1b 262,144. vLLM compares these numbers alone and refuses
# the pair. Here the tokenizers are compared, and the draft is configured with the target's number
# of rows, so that all buffers and kernels of both models agree. ``drafting/draft_building.py``
# loads it so.

ROWS = "vocab_size_of_checkpoint"
"""Where the draft's configuration keeps the number of rows that its files have."""


def rows_of_files(config: SpeculativeConfig) -> int | None:
    """The rows that a draft model's files have, where the target's padding has other numbers.

    Raises:
        ValueError: the tokenizers differ, or one cannot be read; or the draft has fewer rows, and
            ``use_local_argmax_reduction``, whose argmax takes all rows, is set.
    """
    target, draft = config.target_model_config, config.draft_model_config
    if config.method != "draft_model" or target is None or draft is None:
        return None
    if getattr(config, "use_heterogeneous_vocab", False):
        return None
    rows: int = draft.get_vocab_size()
    of_target = target.get_vocab_size()
    if rows == of_target:
        return None
    # vLLM gives the draft's configuration the target's tokenizer, which --tokenizer may name.
    tokens = plain_tokens(target, target.tokenizer), plain_tokens(draft, draft.model)
    refuse_unlike_tokens(*tokens, (of_target, rows))
    if rows < of_target and config.use_local_argmax_reduction:
        raise ValueError(
            f"use_local_argmax_reduction was asked for, and the draft has {rows} rows of its "
            f"embeddings, the target {of_target}. The option serves drafts with as many rows or "
            "more. Leave it out."
        )
    return rows


def refuse_unlike_tokens(
    target: Mapping[int, str], draft: Mapping[int, str], rows: tuple[int, int]
) -> None:
    """Refuse tokenizers that have different tokens under one number.

    Args:
        target: number -> token, without those that were added to the tokenizer (special ones
            differ between a model and its chat version).
        draft: the same of the draft.
        rows: of the embeddings of both.
    """
    shared = target.keys() & draft.keys()
    unlike = [one for one in shared if target[one] != draft[one]]
    if shared and not unlike:
        return
    first = min(unlike, default=0)
    differ = (
        f"{len(unlike)} of {len(shared)} tokens differ, first token {first}: "
        f"{target[first]!r} and {draft[first]!r}"
        if unlike
        else "they have no token in common"
    )
    raise ValueError(
        f"a draft model with a vocabulary of {rows[1]} rows was asked for, for a target with "
        f"{rows[0]}, and their tokenizers are unlike: {differ}. Different numbers of rows are "
        "served where both models have one tokenizer. Choose a draft of the target's family."
    )


def plain_tokens(model: ModelConfig, name: str) -> dict[int, str]:
    """Number -> token of a model's tokenizer, of this name, without tokens that were added.

    Raises:
        ValueError: it cannot be read.
    """
    from vllm.tokenizers import get_tokenizer  # late: vLLM's configuration is imported before it

    try:
        tokenizer: Any = get_tokenizer(
            name, revision=model.revision, trust_remote_code=model.trust_remote_code
        )
    except Exception as error:  # whatever a tokenizer's own code raises
        raise ValueError(
            "draft and target have vocabularies of different numbers of rows, and the tokenizer of "
            f"{name}, by which they are compared, cannot be read: "
            f"{str(error).partition(chr(10))[0]}. Put its files beside its weights, or choose a "
            "draft with as many rows."
        ) from error
    added = tokenizer.get_added_vocab()
    return {number: token for token, number in tokenizer.get_vocab().items() if token not in added}


# A draft that is asked for as a model of its own keeps its architecture.
#
# vLLM reads every draft's configuration through ``SpeculativeConfig.hf_config_override``. That
# makes of some families (Qwen3-Next, Qwen3.5, DeepSeek-V3, Nemotron-H and others) their MTP
# heads, and the method becomes ``mtp``, whatever was asked for and whether there are layers of
# such a head.
#
# Of a head of several modules the first one makes each token of a proposal. vLLM 0.23.0 and
# vllm-ascend build and load the others, give them caches, and never run them.
#
# vLLM reads the configuration of a target's own layers again, without ``--hf-overrides``. Where
# these lengthen the context, the layers would rotate as without them, and draft nothing of use
# behind the length of config.json.

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

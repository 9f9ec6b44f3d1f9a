# SPDX-License-Identifier: Apache-2.0
"""Draft models with the target's tokenizer and another number of rows in their embeddings.

Models of one family pad one tokenizer to different sizes: Qwen2.5-72B has 152,064 rows, its 0.5B
151,936; Gemma-3-27b 262,208, its 1b 262,144. vLLM compares these numbers alone and refuses the
pair. Here the tokenizers are compared, and the draft is configured with the target's number of
rows, so that all buffers and kernels of both models agree. ``drafting/padded_vocabulary.py`` loads
it so.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vllm.config import ModelConfig, SpeculativeConfig

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

# SPDX-License-Identifier: Apache-2.0
"""Embeddings and output matrix of a target, whatever its class calls them.

While a draft is loaded, vLLM and vllm-ascend ask any target for ``model``, ``model.embed_tokens``
and ``lm_head``. Many classes have other names (``transformer.wte``, ``gpt_neox.embed_in``), or no
output matrix beside their embeddings.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

from vllm.model_executor.layers.vocab_parallel_embedding import (
    ParallelLMHead,
    VocabParallelEmbedding,
)
from vllm.model_executor.models import supports_multimodal

from mkv_ascend.adapters.patching import lent, record

TARGET_PARTS = record(
    name="drafts of targets with other names for their parts",
    target=(
        "vllm_ascend.spec_decode.llm_base_proposer:AscendSpecDecodeBaseProposer.load_model",
        "vllm_ascend.spec_decode.llm_base_proposer"
        ":AscendSpecDecodeBaseProposer._maybe_share_topk_indices",
    ),
)


def text_part(target: Any) -> Any:
    """The language model of a multi-modal target; else the target."""
    return target.get_language_model() if supports_multimodal(target) else target


def embeddings_of(target: Any) -> Any:
    """The token embeddings, on the first pipeline stage; behind it a placeholder, or None.

    The names that the hosts know come first: Gemma 4 has other embeddings beside them.
    """
    text = text_part(target)
    inner = getattr(text, "model", None)
    named = getattr(inner, "embed_tokens", None) or getattr(inner, "embedding", None)
    return named or next((one for one in text.modules() if _embeds(one)), None)


def output_matrix_of(target: Any) -> Any:
    """What makes logits of the last hidden states: a matrix of its own, or the embeddings."""
    named = getattr(target, "lm_head", None) or getattr(text_part(target), "lm_head", None)
    matrices = (one for one in target.modules() if isinstance(one, ParallelLMHead))
    return named or next(matrices, None) or embeddings_of(target)


def _embeds(module: Any) -> bool:
    return isinstance(module, VocabParallelEmbedding) and not isinstance(module, ParallelLMHead)


@contextlib.contextmanager
def named_parts(target: Any) -> Iterator[None]:
    """Let a target answer by the hosts' names while the block runs, where its class has others."""
    text, embeddings, matrix = text_part(target), embeddings_of(target), output_matrix_of(target)
    with contextlib.ExitStack() as names:
        names.enter_context(lent(text, "model", SimpleNamespace()))
        names.enter_context(lent(text.model, "embed_tokens", embeddings))
        names.enter_context(lent(text, "lm_head", matrix))
        if supports_multimodal(target):
            token = getattr(target.config, "image_token_id", None)
            names.enter_context(lent(target.config, "image_token_index", token))
        yield

# SPDX-License-Identifier: Apache-2.0
"""What drafts take of a target: embeddings and output matrix, and for Gemma 4's heads its keys.

While a draft is loaded, vLLM and vllm-ascend ask any target for ``model``, ``model.embed_tokens``
and ``lm_head``. Many classes have other names (``transformer.wte``, ``gpt_neox.embed_in``), or no
output matrix beside their embeddings. Layers of a draft that have queries alone read keys and
values of the target (Gemma 4).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from vllm.config import get_layers_from_vllm_config
from vllm.model_executor.layers.attention import Attention
from vllm.model_executor.layers.vocab_parallel_embedding import (
    ParallelLMHead,
    VocabParallelEmbedding,
)
from vllm.model_executor.models import supports_multimodal
from vllm.v1.kv_cache_interface import KVCacheSpec

from mkv_ascend.adapters.common.attention.derived import underived
from mkv_ascend.adapters.patching import lent, record
from mkv_ascend.adapters.port import LoadedDraft

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


def read_keys_of_the_target(loaded: LoadedDraft) -> None:
    """Let each of the draft's layers read the last layer of the target that keeps such keys.

    Raises:
        ValueError: the target has no layer with keys of that shape, or keeps them for another
            backend.
    """
    config, layers = loaded.facts.vllm_config, loaded.layers
    every = get_layers_from_vllm_config(config, Attention)
    owners = {
        _kept(layer.get_kv_cache_spec(config)): name
        for name, layer in every.items()
        if name not in layers and layer.kv_sharing_target_layer_name is None
    }
    for name, layer in layers.items():
        wanted = _kept(layer.get_kv_cache_spec(config))
        if wanted not in owners:
            raise ValueError(
                f"layer {name} of the draft reads keys of the target, of the form {wanted}, and "
                f"the target keeps {', '.join(map(str, owners)) or 'none'}. Choose the head that "
                "belongs to this target."
            )
        _refuse_another_backend(name, layer, owners[wanted], every[owners[wanted]])
        layer.kv_sharing_target_layer_name = owners[wanted]


def _refuse_another_backend(name: str, layer: Any, owner_name: str, owner: Any) -> None:
    # The host's class arranges a cache. What is derived from it reads the same: the spec tells its
    # dtype, and layers of a draft alone have windows that may see ahead.
    ours, theirs = underived(type(layer.impl)), underived(type(owner.impl))
    if ours is not theirs:
        raise ValueError(
            f"layer {name} of the draft is on {ours.__name__}, and reads the cache of "
            f"{owner_name}, which is on {theirs.__name__}. Choose one backend for both, or leave "
            "the draft's out."
        )


def _kept(spec: KVCacheSpec) -> KVCacheSpec:
    """What a layer keeps for each token, and how long; not in how large blocks."""
    return replace(spec, block_size=1)

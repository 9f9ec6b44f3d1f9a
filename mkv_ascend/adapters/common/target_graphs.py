# SPDX-License-Identifier: Apache-2.0
"""The target's verify steps in full graphs, whatever proposes the drafts.

A verify step has K + 1 tokens per request. vllm-ascend 0.23.0 knows this only for the methods
eagle, eagle3 and mtp. For the others (draft_model, ngram, suffix) it takes a verify step for a
decode with one token per request: in captures, and in MLA's updates of captured launches.

Where all tokens are drafted at once (dflash, parallel drafting), its builder gives a verify step's
lengths on the device. The operator for sinks needs them as a list when it is captured, and that is
a host read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import vllm_ascend.ops  # noqa: F401  before the rest of it: its modules import in a circle
from vllm.v1.kv_cache_interface import MambaSpec
from vllm_ascend.attention.attention_v1 import (
    AscendAttentionMetadataBuilder,
    AscendAttentionState,
)

from mkv_ascend.adapters.patching import record

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.worker.utils import AttentionGroup


class _Seen:
    """A speculative configuration of which a subclass changes one answer."""

    def __init__(self, config: Any) -> None:
        self._config = config

    def __getattr__(self, name: str) -> Any:
        return getattr(self._config, name)


class OneTokenPerPass(_Seen):
    """A speculative configuration that does not draft in parallel."""

    parallel_drafting = False


class SeveralTokensPerRequest(_Seen):
    """A speculative configuration whose method is one of those that vllm-ascend looks for.

    Args:
        tokens: draft tokens that each request verifies; None: those of the configuration.
    """

    def __init__(self, config: Any, tokens: int | None) -> None:
        super().__init__(config)
        self.num_speculative_tokens = config.num_speculative_tokens if tokens is None else tokens

    def use_eagle(self) -> bool:
        """vllm-ascend asks this to learn whether requests of a verify step have K + 1 tokens."""
        return True


def for_updates(config: Any, tokens: int | None = None) -> Any:
    """The speculative configuration that updates of captured launches see.

    Args:
        tokens: draft tokens that each request verifies; None: those of the configuration.
    """
    return None if config is None else SeveralTokensPerRequest(config, tokens)


def attends(groups: Iterable[Iterable[AttentionGroup]]) -> bool:
    """Whether a layer of these attention groups is anything but recurrent.

    A pipeline stage may have states alone. No captured launch of it is updated, and vllm-ascend
    0.23.0, which would look for some, asks for a configuration that is not set in a replay.
    """
    specs = (group.kv_cache_spec for kv_group in groups for group in kv_group)
    return not all(isinstance(spec, MambaSpec) for spec in specs)


def have_readers(config: VllmConfig, groups: Iterable[Iterable[AttentionGroup]]) -> bool:
    """Whether a layer of these attention groups reads another layer's cache, without own keys."""
    layers = config.compilation_config.static_forward_context
    names = (name for kv_group in groups for group in kv_group for name in group.layer_names)
    return any(getattr(layers.get(it), "kv_sharing_target_layer_name", None) for it in names)


def state_of(
    state: AscendAttentionState,
    max_query_len: int,
    verifies: bool,
    reads_caches: Callable[[], bool] = lambda: False,
) -> AscendAttentionState:
    """The attention state of a step; several tokens per request are a chunk, not a decode.

    Without chunked prefill vllm-ascend calls a step of prompts and verified drafts a prefill behind
    prefix hits, and MLA then takes each request's tokens for one. And in a prefill without hits it
    attends to a layer's own keys, of which one that reads another layer's cache has none.

    Args:
        verifies: whether requests verify drafts.
        reads_caches: whether there is such a layer.
    """
    if state is AscendAttentionState.PrefillNoCache and reads_caches():
        return AscendAttentionState.ChunkedPrefill
    one_token_each = {AscendAttentionState.DecodeOnly}
    if verifies:
        one_token_each.add(AscendAttentionState.PrefillCacheHit)
    if state in one_token_each and max_query_len > 1:
        return AscendAttentionState.ChunkedPrefill
    return state


VERIFY_STEPS = record(
    name="verify steps of any method in full graphs",
    target=(
        "vllm_ascend.worker.model_runner_v1:NPUModelRunner._update_full_graph_params_if_needed",
        "vllm_ascend.attention.attention_v1:AscendAttentionMetadataBuilder.__init__",
    ),
    reads=(
        "vllm_ascend.attention.mla_v1:AscendMLAImpl.update_graph_params",
        "vllm_ascend.attention.attention_v1:AscendAttentionMetadataBuilder.build",
    ),
)


def take_lengths_on_the_host(builders: Iterable[Any]) -> None:
    """Let the target's builders give a verify step's lengths on the host, for every method.

    The runner keeps the lengths on the host exact for every method.
    """
    for builder in builders:
        if isinstance(builder, AscendAttentionMetadataBuilder) and builder.speculative_config:
            builder.speculative_config = OneTokenPerPass(builder.speculative_config)

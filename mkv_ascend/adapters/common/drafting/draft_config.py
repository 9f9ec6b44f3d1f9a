# SPDX-License-Identifier: Apache-2.0
"""The draft's configuration, separate from the target's.

vLLM makes the draft's ``VllmConfig`` by copying the target's with ``replace()``. The copy shares
its parts by reference. Making it runs the platform's ``check_and_update_config`` again, now for the
draft. In vllm-ascend that changes objects that the target uses:

* ``cache_config``: ``block_size`` (a draft that is not hybrid resets a hybrid target's 1024 to
  128), ``cache_dtype`` (a draft with ``index_topk``), the Mamba page size. And the draft takes over
  values of the target's: if all of the target's layers have windows, its ``sliding_window`` makes
  windows of a dense draft's layers;
* the process-wide ``AscendConfig``, which afterwards is the draft's for both models.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from vllm_ascend import ascend_config, utils
from vllm_ascend.utils import enable_sp, is_drafter_moe_model

from mkv_ascend.adapters.patching import replaced

if TYPE_CHECKING:
    from vllm.config import CacheConfig, LoadConfig, ParallelConfig, VllmConfig

HOW_RANKS_SHARE = (
    "prefill_context_parallel_size",
    "decode_context_parallel_size",
    "cp_kv_cache_interleave_size",
)
"""Options of context parallelism."""

OF_THE_PROCESS = frozenset({"_ASCEND_CONFIG", "_INIT_VLLM_CONFIG"})
"""Globals of vllm-ascend that are one model's; 0.23.0 has the first one alone."""


def separate_draft_config(
    target: VllmConfig,
    make_draft: Callable[[], VllmConfig],
    *,
    recurrent: bool = False,
    replicated: bool = False,
    names_experts: bool = False,
) -> VllmConfig:
    """Make the draft's configuration without changing the target's.

    Args:
        target: the target's configuration; its ``cache_config`` is the same before and after.
        make_draft: vLLM's own way to make the draft's.
        recurrent: whether the draft has recurrent layers. Their states are then as without prefix
            caching, one per request, whatever the target does.
        replicated: whether each rank keeps all of the draft's keys, whatever it keeps of the
            target's.
        names_experts: whether vllm-ascend asks for ranks of the target's experts in the draft's.

    Returns:
        The draft's configuration with a ``cache_config`` of its own, on one pipeline stage. Its
        block size is the target's, because the scheduler counts in it and the draft's specs are
        made with it.
    """
    before = copy.copy(target.cache_config)
    if recurrent:
        _without_states_of_prefixes(target.cache_config)
    with _experts_named(target) if names_experts else contextlib.nullcontext():
        draft = make_draft()
    draft.cache_config = copy.copy(draft.cache_config)
    draft.cache_config.block_size = before.block_size
    draft.cache_config.sliding_window = _uniform_window(target)
    draft.parallel_config = _on_ranks_of(
        target.parallel_config, draft.parallel_config, replicated=replicated
    )
    vars(target.cache_config).update(vars(before))
    if recurrent:
        _without_states_of_prefixes(draft.cache_config)
        draft.cache_config.mamba_block_size = target.model_config.max_model_len
    return draft


def load_options_of_draft(target: VllmConfig) -> LoadConfig:
    """How the draft's weights are loaded: as its own options say, else as the target's are.

    vLLM's proposers read ``draft_load_config`` for heads on model runner V1 alone.
    """
    own: LoadConfig | None = target.speculative_config.draft_load_config
    return target.load_config if own is None else own


def _experts_named(target: VllmConfig) -> AbstractContextManager[None]:
    """Let vLLM make the draft's configuration where the target's ranks share tokens out.

    vLLM names no ranks of experts to a draft model, and may not where it has none; vllm-ascend
    asks for them where the target has some.
    """
    speculative, ranks = target.speculative_config, target.parallel_config
    own = None if speculative is None else speculative.draft_parallel_config
    if own is None or not (ranks.enable_expert_parallel and enable_sp(target)):
        return contextlib.nullcontext()
    if not is_drafter_moe_model(target):
        return replaced(utils, "_IS_MOE_MODEL", value=False)
    named = copy.copy(own)
    named.enable_expert_parallel = True
    return replaced(speculative, "draft_parallel_config", named)


def _on_ranks_of(
    target: ParallelConfig, draft: ParallelConfig, *, replicated: bool
) -> ParallelConfig:
    """The draft's ranks: all of its layers are on the last pipeline stage.

    Heads number their layers behind the target's, of which a stage would count its own alone. Ranks
    that share the keys of a sequence do so in one way, which vLLM does not tell a draft model of.
    """
    shared = {name: 1 if replicated else getattr(target, name) for name in HOW_RANKS_SHARE}
    differing = {name for name, value in shared.items() if getattr(draft, name) != value}
    if draft.pipeline_parallel_size == 1 and not differing:
        return draft
    whole = copy.copy(draft)
    whole.pipeline_parallel_size = 1
    vars(whole).update(shared)
    return whole


def _uniform_window(target: VllmConfig) -> int | None:
    """The window of all the draft's layers, as vLLM finds it for a model served alone."""
    speculative = target.speculative_config
    if speculative is None or speculative.draft_model_config is None:
        window: int | None = target.cache_config.sliding_window
        return window
    model = speculative.draft_model_config
    kinds = getattr(model.hf_text_config, "layer_types", None) or ()
    return None if len(set(kinds)) > 1 else model.get_sliding_window()


def _without_states_of_prefixes(cache: CacheConfig) -> None:
    cache.enable_prefix_caching = False
    cache.mamba_cache_mode = "none"
    cache.mamba_block_size = cache.mamba_page_size_padded = None


def builder_config(draft: VllmConfig) -> VllmConfig:
    """The configuration for the draft's metadata builders: the draft's, with its own model.

    For the eagle, eagle3, mtp and dflash methods vLLM leaves the target's ``model_config`` in
    the draft's configuration. A shallow copy is made without ``replace()``, which would run the
    platform's checks once more.
    """
    speculative = draft.speculative_config
    if speculative is None or speculative.draft_model_config is None:
        return draft
    config = copy.copy(draft)
    config.model_config = speculative.draft_model_config
    return config


@contextlib.contextmanager
def preserve_ascend_config() -> Iterator[None]:
    """Restore the target's process-wide AscendConfig of vllm-ascend afterwards.

    vllm-ascend 0.30.0rc2 also keeps the configuration that it was made from, and makes another one
    for whoever asks with another.
    """
    before = {name: vars(ascend_config)[name] for name in OF_THE_PROCESS & set(vars(ascend_config))}
    try:
        yield
    finally:
        vars(ascend_config).update(before)

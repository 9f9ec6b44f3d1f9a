# SPDX-License-Identifier: Apache-2.0
"""What of checks and plans from numbers differs between hosts. Each adapter's ``host`` has one."""

from __future__ import annotations

from dataclasses import dataclass

from mkv_ascend.checks.unserved_family import UnservedFamily

__all__ = ["HostRules"]


@dataclass(frozen=True)
class HostRules:
    """What a host does with models, as far as options and config.json files tell.

    ``vllm``: its release of vLLM, such as 0.23. ``quantizations``: of weights, as its platform
    names them (``supported_quantization``).
    ``equal_pages``: whether vLLM makes attention and states of a target equal pages, by padding,
    and their operators take strides. Else blocks of attention have keys of as many bytes as a
    state, where that can be. ``indexer_is_a_layer``: whether the indexer of sparse attention has a
    cache of its own. ``plans_compressed``: whether caches of DeepSeek-V4 alone are planned, not
    left to vllm-ascend; beside layers of another model they are planned on any host.
    ``compressed_in_one_process``: whether a worker in the engine core's own process serves them.
    ``hits_beside_states``: whether vLLM looks for prefix hits beside states of the target by
    itself; it then keeps the states at ends of blocks, too. ``counts_batches_in_flight``: whether
    vLLM admits requests by the tokens of all batches under way, not of one. ``short_convolution``:
    what vLLM calls the module of a layer that is one. ``delta_attention_drafts``: whether
    Kimi delta attention keeps a state for each draft token, so that rejected ones are taken back.
    """

    vllm: str
    quantizations: tuple[str, ...]
    equal_pages: bool
    indexer_is_a_layer: bool
    plans_compressed: bool
    compressed_in_one_process: bool
    hits_beside_states: bool
    counts_batches_in_flight: bool
    short_convolution: str
    delta_attention_drafts: bool
    configurations_as_code: frozenset[str] = frozenset()
    """Model types of which neither its transformers nor its vLLM has a configuration: it is code
    beside the weights, which vLLM runs with ``--trust-remote-code`` alone."""
    int8_cache_families: frozenset[str] = frozenset()
    """Classes of models whose scales of int8 keys and values are loaded; empty: all."""
    int8_is_an_option: bool = False
    """Whether ``--kv-cache-dtype int8`` asks for caches of 8 bits: latents of sparse attention, or
    what weights describe."""
    indexer_sets_cache_dtype: bool = False
    """Whether ``--kv-cache-dtype`` has no effect on targets that choose the keys they attend to:
    their caches have the model's dtype."""
    offloads_split_caches: bool = False
    """Whether OffloadingConnector takes caches whose keys and values are tensors of their own: by a
    worker of vllm-ascend's in place of vLLM's."""
    offload_takes_one_group: bool = False
    """Whether SimpleCPUOffloadConnector takes one KV group alone, not several without states."""
    whole_steps_uncompiled: bool = False
    """Whether whole steps of a model that is not compiled are captured: asked for, or left where
    pieces were asked for beside them. MLA is not, on model runner V1."""
    captures_shares: bool = False
    """Whether a draft's passes are captured where ranks share the keys of a sequence."""
    has_draft_options: bool = False
    """Whether vLLM's and vllm-ascend's options of drafts of 0.30.0 are there
    (``about_draft_options``)."""
    windows_in_blocks: bool = False
    """Whether layers of drafts of mask tokens may have windows; else vLLM's class leaves them
    out."""
    options_beat_variables: bool = False
    """Whether what ``--additional-config`` says stands against a variable; else either switches
    ``enable_flashcomm1`` on."""
    thinking_budgets: bool = True
    """Whether a request's ``thinking_token_budget`` holds."""
    nz_variable: str | None = None
    """Variable that says what ``weight_nz_mode`` of ``--additional-config`` does not."""
    has_rl_config: bool = False
    """Whether ``rl_config`` of ``--additional-config`` makes ``weight_nz_mode`` 0, and can ask for
    what ``VLLM_BATCH_INVARIANT`` asks for."""
    keeps_states_of_all_blocks: frozenset[str] = frozenset()
    """Classes of models for which vLLM takes ``--mamba-cache-mode all``, where that is refused. For
    others it takes ``align`` by itself (``SupportsMambaPrefixCaching``)."""
    ascend_options: frozenset[str] = frozenset()
    """Names that are known in ``--additional-config``, where others are refused; empty: any."""
    loads_experts_by_map: bool = False
    """Whether weights of experts are loaded where ``eplb_config`` of ``--additional-config`` places
    them, copies, too, on model runner V1."""
    unserved_families: tuple[UnservedFamily, ...] = ()
    """Families that the host refuses or serves wrongly."""
    in_turn_by_default: frozenset[str] = frozenset()
    """Methods whose steps vLLM schedules ahead where ``--async-scheduling`` asks for it alone."""

# SPDX-License-Identifier: Apache-2.0
"""What of rules differs between hosts. Each adapter's ``host`` has one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class UnservedFamily:
    """A family of models that a host has classes for and does not serve, or serves wrongly.

    ``classes``: names in ``architectures`` of config.json, of which a model has no other one.
    ``why``: what the host does with it, to be read behind "MODEL is "; ``{dtype}`` stands for the
    model's. ``possible``, ``change``: as of a ``Refusal``. ``dtypes``: those in which it is served.
    ``as_draft``: whether it is served as a target.
    """

    classes: frozenset[str]
    why: str
    possible: str
    change: str
    dtypes: frozenset[str] = frozenset()
    as_draft: bool = False

    def is_of(self, architectures: Iterable[str], dtype: str, *, drafts: bool) -> bool:
        """Whether a model of this family is not served."""
        names = frozenset(architectures)
        is_family = bool(names) and names <= self.classes
        return is_family and dtype not in self.dtypes and (drafts or not self.as_draft)


MINIMAX_M2_AS_DRAFT = UnservedFamily(
    # worker/patch_minimax_m2.py takes them from globals of ops/rotary_embedding.py.
    frozenset({"MiniMaxM2ForCausalLM"}),
    "a MiniMax-M2: vllm-ascend rotates its queries and keys by cosines and sines of the target's "
    "positions, which it keeps once per process",
    "MiniMax-M2 as the target, and drafts of other families",
    "choose another draft",
    as_draft=True,
)


@dataclass(frozen=True)
class HostRules:
    """What a host does with models, as far as a configuration tells. ``vllm``: its release."""

    vllm: str
    plans_compressed: bool
    """Whether caches of DeepSeek-V4 alone are planned, not left to vllm-ascend; beside layers of
    another model they are planned on any host."""
    compressed_in_one_process: bool
    """Whether a worker in the engine core's own process serves them."""
    delta_attention_drafts: bool
    """Whether Kimi delta attention keeps a state for each draft token, so that rejected ones are
    taken back."""
    int8_cache_families: frozenset[str] = frozenset()
    """Classes of models whose scales of int8 keys and values are loaded; empty: all."""
    int8_is_an_option: bool = False
    """Whether ``--kv-cache-dtype int8`` asks for caches of 8 bits: latents of sparse attention, or
    what weights describe."""
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
    """Whether vLLM's and vllm-ascend's options of drafts of 0.30.0 are there."""
    moves_choices_of_ranks: bool = False
    """Whether what a draft's first pass chose reaches the ranks of later passes (DSA-CP)."""
    windows_in_blocks: bool = False
    """Whether layers of drafts of mask tokens may have windows; else vLLM's class leaves them
    out."""
    thinking_budgets: bool = True
    """Whether a request's ``thinking_token_budget`` holds."""
    most_tokens_of_gated_delta_rule: int | None = None
    """Tokens of one request that its operator verifies in a step; None: as many as attention."""
    states_beside_drafts: frozenset[str] = frozenset()
    """Fields of configurations with recurrent states that drafts are served beside; empty: any."""
    refuses_states_of_all_blocks: bool = False
    """Whether ``--mamba-cache-mode all`` reaches an engine, which gives it useless blocks."""
    ascend_options: frozenset[str] = frozenset()
    """Names that are known in ``--additional-config``, where others are refused; empty: any."""
    loads_experts_by_map: bool = False
    """Whether weights of experts are loaded where ``eplb_config`` of ``--additional-config`` places
    them, copies, too, on model runner V1."""
    unserved_families: tuple[UnservedFamily, ...] = ()
    """Families that the host refuses or serves wrongly."""
    in_turn_by_default: frozenset[str] = frozenset()
    """Methods whose steps vLLM schedules ahead where ``--async-scheduling`` asks for it alone."""

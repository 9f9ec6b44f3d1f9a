# SPDX-License-Identifier: Apache-2.0
"""A proposal of a draft that has recurrent layers, such as Qwen3-Next's.

Its first pass is over the target's own rows, without what the target sampled: any of their tokens
may turn out to be the last that is accepted, and the state after it must be there. ``states.py``
says how that one is kept. All K tokens are then drafted by passes of one token per request, the
first of which sees what the target sampled: one pass more than other drafts take.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from vllm.config import CUDAGraphMode, get_layers_from_vllm_config
from vllm.model_executor.layers.mamba.abstract import MambaBase
from vllm.v1.kv_cache_interface import MambaSpec
from vllm_ascend.ascend_config import get_ascend_config
from vllm_ascend.utils import lmhead_tp_enable

from mkv_ascend.drafting.draft_config import builder_config
from mkv_ascend.drafting.plan import Sizes
from mkv_ascend.drafting.proposing import Proposing
from mkv_ascend.drafting.state_groups import DraftStates, StateGroup, find_state_groups
from mkv_ascend.drafting.state_kinds import refuse_unknown_states
from mkv_ascend.drafting.steps import Passes

if TYPE_CHECKING:
    from vllm.config import VllmConfig


@dataclass(frozen=True)
class RecurrentPasses(Passes):
    """Passes that keep states.

    Attributes:
        states: whose metadata the passes have.
    """

    states: DraftStates | None = None


class RecurrentProposing(Proposing):
    """Mixin before ``Proposing`` for drafts with recurrent layers.

    ``make_state_groups``: gives the groups of recurrent layers, with new builders.
    """

    states: DraftStates
    make_state_groups: Callable[[], tuple[StateGroup, ...]]
    max_query_tokens: int
    _num_rejected: torch.Tensor | None = None

    def load_model(self, model: Any) -> None:
        """Load the draft.

        Raises:
            NotImplementedError: its recurrent layers, or vllm-ascend's way to sample, are such
                that it cannot be served.
        """
        if lmhead_tp_enable() or get_ascend_config().enable_reduce_sample:
            raise NotImplementedError(
                "the draft has recurrent layers and sampling is over a vocabulary that is split "
                "by other ranks (lmhead_tensor_parallel_size, enable_reduce_sample), which "
                "vllm-ascend's own loop over passes does; it knows no recurrent drafts. Leave "
                "these options out, or choose a draft of attention layers only."
            )
        super().load_model(model)
        self._sampled_tokens = torch.zeros(
            self.max_batch_size, dtype=torch.int64, device=self.device
        )

    def _get_model(self) -> Any:
        """Build the draft; its recurrent layers give the spec that its own configuration says.

        vllm-ascend asks all layers with the target's, which says nothing of states where the
        target has none.
        """
        before = get_layers_from_vllm_config(self.vllm_config, MambaBase)
        model = super()._get_model()  # type: ignore[misc]
        own = self._create_draft_vllm_config()  # type: ignore[attr-defined]
        for name, layer in get_layers_from_vllm_config(self.vllm_config, MambaBase).items():
            if name not in before:
                layer.get_kv_cache_spec = functools.partial(_own_spec, layer, own)
        return model

    def refuse_layers(self, specs: Mapping[str, Any]) -> None:
        """Refuse recurrent layers whose states are not known; attention layers are served."""
        refuse_unknown_states(self._recurrent_layers(), self.num_speculative_tokens)

    def _recurrent_layers(self) -> dict[str, Any]:
        recurrent = {
            name for name, spec in self.layer_specs().items() if isinstance(spec, MambaSpec)
        }
        return {name: layer for name, layer in self._draft_layers().items() if name in recurrent}

    def attention_layers(self) -> dict[str, Any]:
        """The draft's layers but its recurrent ones."""
        recurrent = self._recurrent_layers()
        return {n: layer for n, layer in self._draft_layers().items() if n not in recurrent}

    def initialize_attn_backend(self, kv_cache_config: Any, *_: Any) -> None:
        """Sort attention layers and recurrent layers into groups of their own."""
        super().initialize_attn_backend(kv_cache_config)
        config = _eager(builder_config(self._create_draft_vllm_config()))  # type: ignore[attr-defined]
        self.make_state_groups = functools.partial(
            find_state_groups,
            self._recurrent_layers(),
            kv_cache_config.kv_cache_groups,
            config,
            self.device,
        )
        groups = self.make_state_groups()
        tables = self.runner.input_batch.block_table
        self.states = DraftStates(
            groups,
            [tables[group.kv_group].get_device_tensor() for group in groups],
            self.max_batch_size,
            self.num_speculative_tokens,
        )
        self.states.bind()

    def describe(self) -> str:
        """What a proposal of this draft takes."""
        layers = sum(len(group.layers) for group in self.states.groups)
        return (
            f"{super().describe()} {layers} layers keep a recurrent state, in "
            f"{len(self.states.groups)} KV groups: one pass more, and {2 * len(self.states.needs)} "
            "times metadata more."
        )

    def _sizes(self) -> Sizes:
        # The first pass has the target's rows, as for a head on hidden states, and drafts nothing.
        return replace(super()._sizes(), later_steps=self.num_speculative_tokens, shift=True)

    def _set_first_pass(
        self,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        next_token_ids: torch.Tensor,
        common: Any,
        num_rejected: torch.Tensor | None,
        padded_rows: int = 0,
    ) -> int:
        rows = super()._set_first_pass(
            token_ids, positions, next_token_ids, common, num_rejected, padded_rows
        )
        self.input_ids[: token_ids.shape[0]] = token_ids
        self._sampled_tokens[: next_token_ids.shape[0]] = next_token_ids
        self._num_rejected = None if num_rejected is None else num_rejected[: len(next_token_ids)]
        return rows

    def _common_of_first_pass(self, target: Any, requests: int, rows: int, input_rows: int) -> Any:
        common = super()._common_of_first_pass(target, requests, rows, input_rows)
        # The host's bound in asynchronous scheduling, where lengths are known to the device alone.
        common.seq_lens_cpu_upper_bound = target.seq_lens_cpu_upper_bound[:requests]
        return common

    def _plan_passes(self, common: Any, requests: int, rows: int, input_rows: int) -> Passes:
        passes, kept = super()._plan_passes(common, requests, rows, input_rows), self.states
        first = {**passes.first, **kept.catch_up(common, self._num_rejected)}
        common_later = self._common_of_later_steps(
            common, self.draft_plan.later_steps(self.later_rows(input_rows, requests), requests),
            requests, self.later_rows(input_rows, requests),
        )  # fmt: skip

        def later() -> list[Any]:
            states = kept.later_steps(common_later)
            return [{**attention, **states} for attention in passes.later()]

        return RecurrentPasses(first, passes.positions, later, passes.rotary, kept)

    def _run_merged_draft(
        self,
        num_input_tokens: int,
        batch_size: int,
        token_indices_to_sample: torch.Tensor,
        target_positions: torch.Tensor,
        inputs_embeds: torch.Tensor | None,
        multi_steps_attn_metadata: Any,
        num_tokens: int,
        is_prefill: bool | None = None,
    ) -> torch.Tensor:
        """Draft K tokens for each request; see ``DraftSteps``."""
        passes = multi_steps_attn_metadata
        positions = self._get_positions(num_input_tokens)  # type: ignore[attr-defined]
        _, hidden = self._forward(num_input_tokens, positions, inputs_embeds)
        if isinstance(passes, RecurrentPasses) and passes.states is not None:
            passes.states.settle(batch_size)
        tokens = torch.empty(
            (self.num_speculative_tokens + 1, batch_size), dtype=torch.int64, device=hidden.device
        )
        tokens[0] = self._sampled_tokens[:batch_size]
        rows = self.later_rows(num_input_tokens, batch_size)
        self._later_passes(tokens, hidden, token_indices_to_sample, rows, passes)
        return tokens[1:].swapaxes(0, 1)


def _eager(config: VllmConfig) -> VllmConfig:
    """``config`` without graphs, for which builders would fill buffers of theirs.

    The draft's graphs have their own block tables (``replaying_states.py``).
    """
    eager = copy.copy(config)
    eager.compilation_config = copy.copy(config.compilation_config)
    eager.compilation_config.cudagraph_mode = CUDAGraphMode.NONE
    return eager


def _own_spec(layer: Any, config: Any, _asked_with: Any) -> Any:
    return type(layer).get_kv_cache_spec(layer, config)

# SPDX-License-Identifier: Apache-2.0
"""How vllm-ascend 0.23.0 does what differs between hosts where drafts are run."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import torch
import torch_npu
from torch.nn.functional import pad
from vllm.distributed.parallel_state import get_tp_group
from vllm_ascend.ascend_config import get_ascend_config
from vllm_ascend.ascend_forward_context import _EXTRA_CTX
from vllm_ascend.attention.context_parallel.attention_cp import AscendAttentionCPMetadataBuilder
from vllm_ascend.attention.context_parallel.mla_cp import AscendMlaCPMetadataBuilder
from vllm_ascend.attention.sfa_v1 import AscendSFAMetadataBuilder

from mkv_ascend.adapters.common.backends.sparse_mla import SparseMLA
from mkv_ascend.adapters.common.backends.table import BACKENDS, Backends
from mkv_ascend.adapters.common.drafting.draft import AscendDraft
from mkv_ascend.adapters.common.drafting.host import DraftHost
from mkv_ascend.adapters.common.drafting.launches import CapturedGraphParams, Layers, Updates
from mkv_ascend.adapters.common.drafting.proposers import PassesOfProposer
from mkv_ascend.adapters.patching import record
from mkv_ascend.adapters.vllm_ascend_0_23.drafting.shared_context import (
    DenseOfShares,
    MLAOfShares,
)
from mkv_ascend.adapters.vllm_ascend_0_23.patches.attention import (
    leave_the_cache_to_its_owner,
    rotate_queries_alone,
)
from mkv_ascend.adapters.vllm_ascend_0_23.patches.experts import (
    preserve_expert_methods,
    use_methods,
)
from mkv_ascend.drafting.draft import HiddenStates

if TYPE_CHECKING:
    from torch import nn

    from mkv_ascend.adapters.port import DraftFacts


# A draft of vllm-ascend 0.23.0: ranks of tensor parallelism may share its rows and logits.

record(
    name="a choice of keys that later passes reuse",
    target="vllm_ascend.attention.sfa_v1:AscendSFAImpl.__init__",
    reads=("vllm_ascend.attention.sfa_v1:AscendSFAImpl._get_indexcache_topk_indices",),
)


def _rows_of_rank(rows: torch.Tensor) -> torch.Tensor:
    """This rank's share of rows that all ranks have; the last one's is padded with zeros."""
    group = get_tp_group()
    padding = [0, 0] * (rows.dim() - 1) + [0, _EXTRA_CTX.pad_size]
    return pad(rows, padding).chunk(group.world_size)[group.rank_in_group]


class RankedDraft(AscendDraft):
    """``AscendDraft`` whose proposer splits the rows of heads over ranks."""

    passes: PassesOfProposer

    def run_model(self, inputs: dict[str, Any]) -> HiddenStates:
        if self._takes_states:
            states, positions = self.share_of_rank(inputs["hidden_states"], inputs["positions"])
            inputs = {**inputs, "hidden_states": states, "positions": positions}
        found = super().run_model(inputs)
        last, _, hidden = self.passes.proposer.maybe_all_gather_and_unpad(
            found.last, inputs["positions"], found.hidden
        )
        return HiddenStates(last, hidden)

    def share_of_rank(
        self, states: torch.Tensor, positions: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The rows of hidden states and positions that this rank runs.

        Of method mtp vllm-ascend adds up what the ranks have, as if each had a part of every row.
        All have the same, and rotary embeddings gather the positions again: they would be as many
        times too large as there are ranks.
        """
        proposer = self.passes.proposer
        if proposer.method != "mtp":
            states, positions = proposer.maybe_pad_and_reduce(states, positions)
            return states, positions
        if not _EXTRA_CTX.flash_comm_v1_enabled or proposer.is_multimodal_model:
            return states, positions
        return _rows_of_rank(states), _rows_of_rank(positions)

    def feed_back(
        self, tokens: torch.Tensor, hidden: torch.Tensor, rows: torch.Tensor | slice
    ) -> None:
        """See ``Draft``; later passes reuse the keys that the first pass chose for these rows."""
        super().feed_back(tokens, hidden, rows)
        if self.loaded.facts.reuses_keys and isinstance(rows, torch.Tensor):
            for layer in self._reusing_layers():
                layer.topk_indices_buffer[: rows.shape[0]] = layer.topk_indices_buffer[rows]

    def _skipping(self) -> Callable[[bool], None]:
        def skip(skip: bool) -> None:
            for layer in self._reusing_layers():
                layer.skip_topk = skip

        return skip

    def _reusing_layers(self) -> list[Any]:
        """Attention whose later passes reuse the first pass's choice of keys."""
        layers: Iterable[Any] = self.loaded.layers.values()
        return [layer.impl for layer in layers if hasattr(layer.impl, "topk_indices_buffer")]

    def sample(
        self, states: torch.Tensor, rows: torch.Tensor | slice, out: torch.Tensor | None = None
    ) -> torch.Tensor:
        """See ``Draft``; with reduced sampling each rank has logits of a share of the vocabulary.

        vllm-ascend's own loop over passes asks draft models, and heads of method eagle, for a part
        that their classes do not have. Its own choice among all shares serves every method.
        """
        if not get_ascend_config().enable_reduce_sample:
            return super().sample(states, rows, out)
        tokens: torch.Tensor = self.passes.proposer.compute_draft_token_ids(states[rows])
        return tokens if out is None else out.copy_(tokens)


class SparseMLAWithIndexer(SparseMLA):
    """Sparse MLA, whose builder also makes the metadata of the indexer."""

    @classmethod
    def serves(cls, builder: Any, of_layers: type[Any] | None) -> bool:
        """No if the builder splits rows over ranks or sorts slots, by launches of its own."""
        return not (builder.enable_dsa_cp or get_ascend_config().c8_enable_reshape_optim)


class Host(DraftHost):
    """``DraftHost`` of vllm-ascend 0.23.0."""

    captures_shares = False
    names_experts = True
    new_graph = staticmethod(torch_npu.npu.NPUGraph)
    backends: ClassVar[Backends] = {
        **BACKENDS,
        AscendSFAMetadataBuilder: (SparseMLAWithIndexer,),
        AscendAttentionCPMetadataBuilder: (DenseOfShares,),
        AscendMlaCPMetadataBuilder: (MLAOfShares,),
    }

    def draft_class(self, facts: DraftFacts) -> type[AscendDraft]:
        several = facts.vllm_config.parallel_config.tensor_parallel_size > 1
        return RankedDraft if several or facts.reuses_keys else AscendDraft

    @contextlib.contextmanager
    def building(self) -> Iterator[Callable[[nn.Module], None]]:
        """See ``DraftHost``; the methods of sending tokens to experts."""
        with preserve_expert_methods() as methods:
            yield functools.partial(use_methods, methods=methods)

    def run_without_keys(self, model: nn.Module, layers: Iterable[Any]) -> None:
        for layer in layers:
            leave_the_cache_to_its_owner(layer)
        rotate_queries_alone(model)

    def updates(
        self,
        graph: Any,
        table: CapturedGraphParams,
        layers: Layers,
        metadata: Sequence[Mapping[str, Any]],
    ) -> Updates:
        """See ``DraftHost``; all launches are noted in the table."""
        return Updates(table.launches(layers, metadata))


HOST = Host()

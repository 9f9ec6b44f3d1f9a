# SPDX-License-Identifier: Apache-2.0
"""How vllm-ascend 0.23.0 does what differs between hosts where drafts are run."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import torch_npu
from vllm_ascend.ascend_config import get_ascend_config
from vllm_ascend.attention.context_parallel.attention_cp import AscendAttentionCPMetadataBuilder
from vllm_ascend.attention.context_parallel.mla_cp import AscendMlaCPMetadataBuilder
from vllm_ascend.attention.sfa_v1 import AscendSFAMetadataBuilder

from mkv_ascend.adapters.common.backends.sparse_mla import SparseMLA
from mkv_ascend.adapters.common.backends.table import BACKENDS, Backends
from mkv_ascend.adapters.common.drafting.host import DraftHost
from mkv_ascend.adapters.common.drafting.launches import CapturedGraphParams, Layers, Updates
from mkv_ascend.adapters.vllm_ascend_0_23.attention.shared_keys import (
    leave_the_cache_to_its_owner,
    rotate_queries_alone,
)
from mkv_ascend.adapters.vllm_ascend_0_23.drafting.expert_methods import (
    preserve_expert_methods,
    use_methods,
)
from mkv_ascend.adapters.vllm_ascend_0_23.drafting.ranked_draft import RankedDraft
from mkv_ascend.adapters.vllm_ascend_0_23.drafting.shared_context import (
    DenseOfShares,
    MLAOfShares,
)

if TYPE_CHECKING:
    from torch import nn


class SparseMLAWithIndexer(SparseMLA):
    """Sparse MLA, whose builder also makes the metadata of the indexer."""

    @classmethod
    def serves(cls, builder: Any, of_layers: type[Any] | None) -> bool:
        """No if the builder splits rows over ranks or sorts slots, by launches of its own."""
        return not (builder.enable_dsa_cp or get_ascend_config().c8_enable_reshape_optim)


class Host(DraftHost):
    """``DraftHost`` of vllm-ascend 0.23.0."""

    draft = RankedDraft
    captures_shares = False
    names_experts = True
    backends: ClassVar[Backends] = {
        **BACKENDS,
        AscendSFAMetadataBuilder: (SparseMLAWithIndexer,),
        AscendAttentionCPMetadataBuilder: (DenseOfShares,),
        AscendMlaCPMetadataBuilder: (MLAOfShares,),
    }

    @contextlib.contextmanager
    def building(self) -> Iterator[Callable[[nn.Module], None]]:
        """See ``DraftHost``; the methods of sending tokens to experts."""
        with preserve_expert_methods() as methods:
            yield functools.partial(use_methods, methods=methods)

    def run_without_keys(self, model: nn.Module, layers: Iterable[Any]) -> None:
        """See ``DraftHost``."""
        for layer in layers:
            leave_the_cache_to_its_owner(layer)
        rotate_queries_alone(model)

    def new_graph(self) -> Any:
        """See ``DraftHost``."""
        return torch_npu.npu.NPUGraph()

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

# SPDX-License-Identifier: Apache-2.0
"""How vllm-ascend 0.30.0 does what differs between hosts where drafts are run."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from vllm.distributed import get_tp_group
from vllm.model_executor.models.deepseek_mtp import DeepSeekMultiTokenPredictorLayer
from vllm_ascend import utils as ascend_utils
from vllm_ascend.ascend_config import get_ascend_config
from vllm_ascend.ascend_forward_context import _EXTRA_CTX, MoECommType
from vllm_ascend.attention.context_parallel.attention_cp import AscendAttentionDCPMetadataBuilder
from vllm_ascend.attention.context_parallel.mla_cp import AscendMlaDCPMetadataBuilder
from vllm_ascend.attention.context_parallel.sfa_cp import AscendSFADCPMetadataBuilder
from vllm_ascend.attention.indexer import AscendSFAIndexerMetadataBuilder
from vllm_ascend.attention.sfa_v1 import AscendSFAMetadataBuilder
from vllm_ascend.spec_decode.dflash2_proposer import is_dflash2_draft
from vllm_ascend.spec_decode.multi_kv_cache_group_proposer import is_multi_kv_cache_group_mtp
from vllm_ascend.spec_decode.utils import compact_mtp_topk_indices

from mkv_ascend.adapters.common.backends.table import BACKENDS, Backends
from mkv_ascend.adapters.common.drafting.draft import AscendDraft
from mkv_ascend.adapters.common.drafting.host import DraftHost, OwnMethod
from mkv_ascend.adapters.common.drafting.kinds_of_drafts import (
    keeps_all_indexer_keys,
    plans_dspark,
)
from mkv_ascend.adapters.common.drafting.launches import CapturedGraphParams, Layers
from mkv_ascend.adapters.common.drafting.proposers import PassesOfProposer
from mkv_ascend.adapters.vllm_ascend_0_30.common.drafting.dspark import (
    DSparkProposer,
    Markov,
)
from mkv_ascend.adapters.vllm_ascend_0_30.common.drafting.shared_context import (
    DenseOfShares,
    MLAOfShares,
)
from mkv_ascend.adapters.vllm_ascend_0_30.common.drafting.sparse_mla import (
    Indexer,
    IndexerOfShares,
    SparseMLAOfShares,
    SparseMLAWithoutIndexer,
)
from mkv_ascend.adapters.vllm_ascend_0_30.common.drafting.task_updates import (
    DraftGraph,
    TaskUpdates,
)
from mkv_ascend.drafting.draft import HiddenStates

if TYPE_CHECKING:
    from torch import nn
    from vllm.config import VllmConfig

    from mkv_ascend.adapters.port import DraftFacts


# A draft as vllm-ascend 0.30.0 runs it.


def send_tokens_to_experts() -> None:
    """Name the way of tokens to experts in the current forward context, if it names none.

    vllm-ascend asks the target's configuration how tokens reach their experts: in no way if the
    target has none. Without expert parallelism, experts of either model have one way.
    """
    if _EXTRA_CTX.moe_comm_type is None:
        _EXTRA_CTX.moe_comm_type = MoECommType.ALLGATHER


class Draft(AscendDraft):
    """``AscendDraft`` in model runner V1; tells layers with experts how to send their tokens."""

    passes: PassesOfProposer

    def run_model(self, inputs: dict[str, Any]) -> HiddenStates:
        send_tokens_to_experts()
        return super().run_model(inputs)

    def feed_back(
        self, tokens: torch.Tensor, hidden: torch.Tensor, rows: torch.Tensor | slice
    ) -> None:
        """See ``Draft``; later passes reuse the keys that the first pass chose for these rows."""
        super().feed_back(tokens, hidden, rows)
        if self.loaded.facts.reuses_keys and isinstance(rows, torch.Tensor):
            inner = getattr(self.model, "model", None)
            if hasattr(inner, "compact_topk_indices"):
                compact_mtp_topk_indices(
                    inner,
                    rows,
                    hidden.shape[0],
                    tp_group=get_tp_group() if ascend_utils.enable_dsa_cp() else None,
                    lim_topk_compactors=self.passes.proposer._lim_topk_compactors,
                )


ASKED = "use_sequence_parallel_moe"


def complete(model: nn.Module) -> None:
    """What a draft's layers need once they are built."""
    complete_blocks(model)
    leave_positions_whole(model)


def leave_positions_whole(model: nn.Module) -> None:
    """Let rotary embeddings of drafting layers take positions as they come.

    Where ranks share tokens out beside experts, those of method mtp gather positions from all
    ranks, as if each had a share. On this host each has all of them.
    """
    for module in model.modules():
        layer: Any = module
        if getattr(layer, "use_mtp", False):
            layer.use_mtp = False


def complete_blocks(model: nn.Module) -> None:
    """Let blocks of drafting layers answer what DeepSeek's layer asks of its own.

    Layers that derive from it may have blocks of another kind, as openPangu's have: those leave
    all rows on every rank.
    """
    for layer in model.modules():
        block: Any = getattr(layer, "mtp_block", None)
        if isinstance(layer, DeepSeekMultiTokenPredictorLayer) and not hasattr(block, ASKED):
            block.use_sequence_parallel_moe = False


class Host(DraftHost):
    """``DraftHost`` of vllm-ascend 0.30.0."""

    new_graph = DraftGraph
    own_methods: ClassVar[Mapping[str, OwnMethod]] = {"dspark": OwnMethod(DSparkProposer, Markov)}
    backends: ClassVar[Backends] = {
        **BACKENDS,
        AscendSFAMetadataBuilder: (SparseMLAWithoutIndexer,),
        AscendSFAIndexerMetadataBuilder: (IndexerOfShares, Indexer),
        AscendAttentionDCPMetadataBuilder: (DenseOfShares,),
        AscendMlaDCPMetadataBuilder: (MLAOfShares,),
        AscendSFADCPMetadataBuilder: (SparseMLAOfShares,),
    }

    def draft_class(self, facts: DraftFacts) -> type[AscendDraft]:
        return Draft

    def keeps_proposer(self, method: str, config: VllmConfig) -> bool:
        """Drafts of some families, whose proposers lay out several KV groups themselves."""
        speculative = config.speculative_config
        if method == "dspark":
            return not plans_dspark(config)
        if method == "dflash":
            return bool(is_dflash2_draft(speculative))
        if method == "mtp":
            return bool(is_multi_kv_cache_group_mtp(config))
        return False

    def plans_shares(self, config: VllmConfig) -> bool:
        """See ``DraftHost``; no sparse MLA whose rows ranks split, or whose slots are sorted."""
        if super().plans_shares(config):
            return True
        options = get_ascend_config()
        other = options.enable_dsa_cp or options.c8_reshape_optim_enabled
        alone = config.parallel_config.prefill_context_parallel_size == 1
        return alone and keeps_all_indexer_keys(config) and not other

    @contextlib.contextmanager
    def building(self) -> Iterator[Callable[[nn.Module], None]]:
        """See ``DraftHost``; there is no such state."""
        yield complete

    def updates(
        self,
        graph: DraftGraph,
        table: CapturedGraphParams,
        layers: Layers,
        metadata: Sequence[Mapping[str, Any]],
    ) -> TaskUpdates:
        """See ``DraftHost``; MLA's launches are noted in the table, others in the graph."""
        return TaskUpdates(graph, table, layers, metadata)


HOST = Host()

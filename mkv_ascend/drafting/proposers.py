# SPDX-License-Identifier: Apache-2.0
"""vllm-ascend's proposers with a draft that is built from its own configuration.

The mixins ``Proposing`` and ``OwnConfiguration`` come before a proposer of vllm-ascend in the order
of base classes. A new method of drafting is one more class at the end of
this file and one line in ``PROPOSERS``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from vllm_ascend.ops.rotary_embedding import set_cos_and_sin
from vllm_ascend.spec_decode import get_spec_decode_method
from vllm_ascend.spec_decode.dflash_proposer import AscendDflashProposer
from vllm_ascend.spec_decode.draft_proposer import AscendDraftModelProposer
from vllm_ascend.spec_decode.eagle_proposer import AscendEagleProposer
from vllm_ascend.spec_decode.step3p5 import AscendStep3p5MTPProposer

from mkv_ascend.adapters.vllm_ascend_0_23.attention.building import ModelBeingBuilt, building
from mkv_ascend.adapters.vllm_ascend_0_23.attention.rope_tables import RopeTables
from mkv_ascend.drafting.draft_config import (
    ascend_config_kept,
    builder_config,
    separate_draft_config,
)
from mkv_ascend.drafting.expert_methods import expert_methods_kept, use_methods
from mkv_ascend.drafting.next_tokens import NextTokensOfChunks
from mkv_ascend.drafting.proposing import Proposing
from mkv_ascend.drafting.proposing_blocks import ProposingBlocks
from mkv_ascend.drafting.recurrent import RecurrentProposing
from mkv_ascend.drafting.recurrent_options import (
    has_recurrent_layers,
    refuse_options_of_recurrent_drafts,
)
from mkv_ascend.drafting.replaying import Replaying
from mkv_ascend.drafting.replaying_blocks import ReplayingBlocks
from mkv_ascend.drafting.replaying_states import ReplayingStates
from mkv_ascend.layout.kind import Role

if TYPE_CHECKING:
    from torch import nn
    from vllm.config import VllmConfig


class OwnConfiguration:
    """Mixin: the draft's layers, metadata builders and rotary tables are the draft's own."""

    vllm_config: VllmConfig
    runner: Any
    positions: torch.Tensor
    uses_mrope: bool
    _own_config: VllmConfig | None = None

    def _create_draft_vllm_config(self) -> VllmConfig:
        if self._own_config is None:
            make = super()._create_draft_vllm_config  # type: ignore[misc]
            self._own_config = separate_draft_config(
                self.vllm_config, make, recurrent=has_recurrent_layers(self.vllm_config)
            )
        return self._own_config

    def _get_model(self) -> nn.Module:
        with ascend_config_kept(), expert_methods_kept() as expert_methods:
            config = builder_config(self._create_draft_vllm_config())
            tables = RopeTables()
            with building(ModelBeingBuilt(Role.DRAFT, config, tables)), tables.active():
                model: nn.Module = super()._get_model()  # type: ignore[misc]
                self._reserve_rope_buffers(config)
            tables.share_what_was_not_recorded()
        use_methods(model, expert_methods)
        return model

    def _reserve_rope_buffers(self, config: VllmConfig) -> None:
        """Give an MLA draft the rotary buffers that its metadata builders fill.

        vllm-ascend reserves them once per process, from the target's configuration. A draft of
        another kind takes its rotary tables from its own layers and needs no buffer.
        """
        if config.model_config.use_mla:
            runner = self.runner
            set_cos_and_sin(
                config,
                runner.max_num_reqs,
                runner.uniform_decode_query_len,
                runner.dtype,
                runner.device,
            )

    def prepare_inputs_padded(self, *args: Any, **kwargs: Any) -> Any:
        """Counts of rejected tokens as int32 on every path.

        Where there is no Triton, vllm-ascend 0.23.0 counts valid tokens with ``sum()``, which
        gives int64; ``npu_copy_and_expand_eagle_inputs`` documents, and reads, int32.
        """
        metadata, indices, to_sample, rejected = super().prepare_inputs_padded(  # type: ignore[misc]
            *args, **kwargs
        )
        return metadata, indices, to_sample, rejected.to(torch.int32)


class MkvDraftModelProposer(Replaying, OwnConfiguration, AscendDraftModelProposer):
    """Method ``draft_model``: an independent, smaller model."""


class MkvRecurrentDraftModelProposer(
    ReplayingStates, RecurrentProposing, OwnConfiguration, AscendDraftModelProposer
):
    """Method ``draft_model`` with recurrent layers."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # Rows of the first pass are the target's: none more for what the target sampled.
        self.net_num_new_slots_per_request = 0


class MkvEagleProposer(NextTokensOfChunks, Replaying, OwnConfiguration, AscendEagleProposer):
    """Methods ``eagle``, ``eagle3`` and ``mtp``: a head on the target's hidden states."""


class MkvStep3p5MTPProposer(OwnConfiguration, AscendStep3p5MTPProposer):
    """Method ``mtp`` for Step3p5, whose heads lie in several KV groups with metadata each."""


class MkvDflashProposer(ReplayingBlocks, ProposingBlocks, OwnConfiguration, AscendDflashProposer):
    """Method ``dflash``: a block of tokens drafted at once."""


class ContextParallelDraftModelProposer(OwnConfiguration, AscendDraftModelProposer):
    """``draft_model`` under context parallelism: vllm-ascend's own proposal, over one KV group."""


class ContextParallelEagleProposer(OwnConfiguration, AscendEagleProposer):
    """``eagle``, ``eagle3`` and ``mtp`` under context parallelism, likewise."""


PROPOSERS: dict[str, type[Any]] = {
    "draft_model": MkvDraftModelProposer,
    "eagle": MkvEagleProposer,
    "eagle3": MkvEagleProposer,
    "mtp": MkvEagleProposer,
    "dflash": MkvDflashProposer,
}

CONTEXT_PARALLEL_PROPOSERS: dict[type[Any], type[Any]] = {
    MkvDraftModelProposer: ContextParallelDraftModelProposer,
    MkvEagleProposer: ContextParallelEagleProposer,
}
"""Its block tables hold a share of each sequence, which the plan of a proposal knows nothing of."""


def proposer_class(method: str, vllm_config: VllmConfig) -> type[Any] | None:
    """Our proposer for a method of speculative decoding; None where vllm-ascend's own is kept.

    That is so for methods without attention layers of their own (ngram, suffix, medusa, hidden
    states).
    """
    proposer = PROPOSERS.get(method)
    if proposer is MkvEagleProposer and vllm_config.speculative_config.use_step3p5_mtp():
        return MkvStep3p5MTPProposer
    if proposer is MkvDraftModelProposer and has_recurrent_layers(vllm_config):
        refuse_options_of_recurrent_drafts(vllm_config)
        return MkvRecurrentDraftModelProposer
    parallel = vllm_config.parallel_config
    if parallel.prefill_context_parallel_size * parallel.decode_context_parallel_size > 1:
        if proposer is MkvDflashProposer:
            raise NotImplementedError(
                "method dflash under context parallelism: a rank's block tables hold a share of "
                "each sequence, and neither vllm-ascend 0.23.0 nor this plugin lays out the "
                "draft's context in shares. Leave context parallelism out, or choose another "
                "method."
            )
        return proposer and CONTEXT_PARALLEL_PROPOSERS.get(proposer, proposer)
    return proposer


def create_proposer(method: str, vllm_config: VllmConfig, device: torch.device, runner: Any) -> Any:
    """The proposer for a method of speculative decoding.

    Raises:
        ValueError: vllm-ascend does not know the method.
    """
    proposer = proposer_class(method, vllm_config)
    if proposer is None:
        return get_spec_decode_method(method, vllm_config, device, runner)
    if Proposing not in proposer.__mro__:
        return proposer(vllm_config, device, runner)
    asked_to_run_eagerly = bool(vllm_config.speculative_config.enforce_eager)
    # Graphs of vllm-ascend's own know of one KV group; drafting/graphs.py captures the passes.
    vllm_config.speculative_config.enforce_eager = True
    made = proposer(vllm_config, device, runner)
    made.asked_to_run_eagerly = asked_to_run_eagerly
    return made

# SPDX-License-Identifier: Apache-2.0
"""vllm-ascend's proposers with members of ours; each is one class derived from theirs.

A new method of drafting is one line in ``PROPOSERS``; one that a host alone has is one of its
``own_methods``.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from vllm.config import get_layers_from_vllm_config
from vllm.config.compilation import CUDAGraphMode
from vllm.forward_context import get_forward_context
from vllm.model_executor.layers.mamba.abstract import MambaBase
from vllm_ascend.ascend_forward_context import set_ascend_forward_context
from vllm_ascend.ops.rotary_embedding import set_cos_and_sin
from vllm_ascend.spec_decode import get_spec_decode_method
from vllm_ascend.spec_decode.dflash_proposer import AscendDflashProposer
from vllm_ascend.spec_decode.draft_proposer import AscendDraftModelProposer
from vllm_ascend.spec_decode.eagle_proposer import AscendEagleProposer
from vllm_ascend.spec_decode.step3p5 import AscendStep3p5MTPProposer
from vllm_ascend.utils import enable_sp, is_drafter_moe_model, lmhead_tp_enable

from mkv_ascend.adapters.common import giving_up, pipeline, weights
from mkv_ascend.adapters.common.attention.building import TARGET, ModelBeingBuilt, building
from mkv_ascend.adapters.common.attention.derived import derive, stock
from mkv_ascend.adapters.common.attention.rope_tables import RopeTables
from mkv_ascend.adapters.common.drafting import records
from mkv_ascend.adapters.common.drafting.assembly import Assembly, context_shares, rope_positions
from mkv_ascend.adapters.common.drafting.draft import takes_images
from mkv_ascend.adapters.common.drafting.draft_building import (
    leave_out_padding,
    loading_padded_vocabulary,
    unmoved_experts,
)
from mkv_ascend.adapters.common.drafting.draft_config import (
    builder_config,
    load_options_of_draft,
    preserve_ascend_config,
    separate_draft_config,
)
from mkv_ascend.adapters.common.drafting.host import DraftHost
from mkv_ascend.adapters.common.drafting.kinds_of_drafts import has_recurrent_layers, is_replicated
from mkv_ascend.adapters.common.drafting.mask_tokens import run_dummy_pass
from mkv_ascend.adapters.common.drafting.next_tokens import (
    batch_up_to_the_chunk,
    prepare_next_token_ids_cpu,
    prepare_next_token_ids_padded,
)
from mkv_ascend.adapters.common.drafting.strategies import (
    Attention,
    HostStrategy,
    MaskTokens,
    Recurrent,
    TargetKeys,
    use_draft_recurrent_specs,
)
from mkv_ascend.adapters.common.drafting.target_parts import TARGET_PARTS, named_parts
from mkv_ascend.adapters.patching import replaced
from mkv_ascend.adapters.port import BlockTables, DraftFacts
from mkv_ascend.drafting.draft import Draft, DraftBuffers, Metadata, PassBatch, TargetOutput
from mkv_ascend.drafting.proposal import Passes, run_passes
from mkv_ascend.layout.kind import Role

if TYPE_CHECKING:
    from torch import nn
    from vllm.config import VllmConfig
    from vllm.forward_context import BatchDescriptor


def _create_draft_vllm_config(self: Any) -> VllmConfig:
    own: VllmConfig | None = vars(self).get("_draft_config")
    if own is None:
        own = self._draft_config = separate_draft_config(
            self.vllm_config,
            stock(self)._create_draft_vllm_config,
            recurrent=has_recurrent_layers(self.vllm_config),
            replicated=is_replicated(self.vllm_config),
            names_experts=self.draft_host.names_experts,
        )
        own.load_config = load_options_of_draft(self.vllm_config)
    return own


def _get_model(self: Any) -> nn.Module:
    """Build the draft from its own configuration, with its own rotary tables."""
    recurrent = get_layers_from_vllm_config(self.vllm_config, MambaBase)
    with preserve_ascend_config(), pipeline.whole(), self.draft_host.building() as built:
        config = builder_config(self._create_draft_vllm_config())
        model_of_draft = ModelBeingBuilt(
            Role.DRAFT, config, RopeTables(), replicated=is_replicated(self.vllm_config)
        )
        with building(model_of_draft), unmoved_experts(config):
            with weights.noted(), loading_padded_vocabulary(config.model_config):
                model: nn.Module = stock(self)._get_model()
            _reserve_rope_buffers(self.runner, config)
    built(model)
    leave_out_padding(model, config.model_config)
    if has_recurrent_layers(self.vllm_config):
        use_draft_recurrent_specs(self.vllm_config, self._create_draft_vllm_config(), recurrent)
    return model


def _reserve_rope_buffers(runner: Any, config: VllmConfig) -> None:
    """Give an MLA draft the rotary buffers that its metadata builders fill.

    vllm-ascend reserves them once per process, from the target's configuration. A draft of another
    kind takes its rotary tables from its own layers and needs no buffer.
    """
    if config.model_config.use_mla:
        set_cos_and_sin(
            config,
            runner.max_num_reqs,
            runner.uniform_decode_query_len,
            runner.dtype,
            runner.device,
        )


def prepare_inputs_padded(self: Any, *args: Any, **kwargs: Any) -> Any:
    """Counts of rejected tokens as int32 on every path.

    Without Triton, vllm-ascend 0.23.0 counts valid tokens with ``sum()``, which gives int64. But
    ``npu_copy_and_expand_eagle_inputs`` documents, and reads, int32.
    """
    metadata, indices, to_sample, rejected = stock(self).prepare_inputs_padded(*args, **kwargs)
    return metadata, indices, to_sample, rejected.to(torch.int32)


def load_draft(self: Any, model: Any) -> None:
    """Load the draft of a target whose class has names of its own for its parts."""
    with named_parts(model):
        stock(self).load_model(model)


def load_model(self: Any, model: Any) -> None:
    """Load the draft, and list its layers in the order of execution."""
    load_draft(self, model)
    assembly = self.assembly
    takes = self.supports_mm_inputs and takes_images(assembly.facts, self.model)
    self.supports_mm_inputs = takes
    assembly.model_loaded(
        self.model,
        self._create_draft_vllm_config(),
        self._draft_attn_layer_names,
        self.inputs_embeds if takes else None,
        self.draft_host.draft_class(assembly.facts),
    )
    self.attn_layer_names = list(assembly.draft.loaded.layers)


def _maybe_share_topk_indices(self: Any, _target: Any) -> None:
    """A draft model chooses keys by itself, as many as its own configuration says."""


def initialize_attn_backend(self: Any, kv_cache_config: Any, *_: Any) -> None:
    """Sort the draft's layers into groups and build the proposal."""
    tables = self.runner.input_batch.block_table
    groups = range(len(kv_cache_config.kv_cache_groups))
    self.draft_attn_groups = self.assembly.bind(
        kv_cache_config,
        BlockTables(
            [tables[kv_group].get_device_tensor() for kv_group in groups],
            [tables[kv_group].block_size for kv_group in groups],
        ),
    )
    own = self.assembly.draft.groups
    self.kv_cache_gid, self.block_size = own.kv_groups[0], own.block_sizes[0]
    self.kernel_block_size = self.block_size


def facts_of(proposer: Any, *, enforce_eager: bool) -> DraftFacts:
    """What a proposer knows of its draft; ``enforce_eager``: the value that the user has set."""
    return DraftFacts(
        vllm_config=proposer.vllm_config,
        method=proposer.method,
        device=proposer.device,
        num_speculative_tokens=proposer.num_speculative_tokens,
        max_requests=proposer.max_batch_size,
        max_tokens=proposer.input_ids.shape[0],
        new_rows=proposer.net_num_new_slots_per_request,
        takes_states=proposer.pass_hidden_states_to_model,
        in_parallel=proposer.parallel_drafting,
        mask_token_id=proposer.parallel_drafting_token_id,
        sampled_per_request=proposer.extra_slots_per_request,
        from_anchor=getattr(proposer, "sample_from_anchor", False),  # of method dspark
        reuses_keys=proposer._share_mtp_indices,
        # DeepSeek-V4's blocks alternately hold states in float32 and keys in bfloat16. On model
        # runner V2 planned blocks are zeroed before they are used again, and vllm-ascend's own
        # caches share no bytes.
        writes_rejected=proposer.runner.use_compress,
        enforce_eager=enforce_eager,
        shares=context_shares(proposer.vllm_config),
    )


def buffers_of(proposer: Any) -> DraftBuffers:
    """The inputs of its passes, except embeddings."""
    takes_states, axes = proposer.pass_hidden_states_to_model, proposer.uses_mrope
    # Without one where there are several axes, except in drafts of mask tokens.
    has_positions = hasattr(proposer, "positions")
    states = proposer.hidden_states if takes_states else None
    return DraftBuffers(
        token_ids=proposer.input_ids,
        positions=proposer.positions if has_positions else torch.zeros_like(proposer.input_ids),
        sample_rows=proposer.token_indices_to_sample,
        rope_positions=proposer.mrope_positions if axes else None,
        hidden_states=getattr(proposer, "_dflash_hidden_states", states),
        masked_state=proposer.parallel_drafting_hidden_state_tensor if takes_states else None,
    )


class PassesOfProposer:
    """``PassHost`` of model runner V1."""

    def __init__(self, proposer: Any) -> None:
        self.proposer, self.runner = proposer, proposer.runner
        self._config: VllmConfig = proposer.vllm_config

    @functools.cached_property
    def in_step(self) -> bool:
        return self._sends_to_experts or self._shares_rows_or_logits

    @functools.cached_property
    def fits_each_pass(self) -> bool:
        """See ``PassHost``.

        Ranks that share tokens out pad a pass to as many rows for each, which its context says.
        Rows of no request would do the same, but attention leaves unwritten what it would write
        for them, and experts of other ranks multiply that by 0: what is not a number reaches
        requests. Ranks of data parallelism would have to agree on rows once more.
        """
        return not self._several and enable_sp(self._config)

    @property
    def _several(self) -> bool:
        return bool(self._config.parallel_config.data_parallel_size > 1)

    @property
    def _sends_to_experts(self) -> bool:
        """Without experts, a draft's pass is this rank's own."""
        return self._several and is_drafter_moe_model(self._config)

    @property
    def _shares_rows_or_logits(self) -> bool:
        splits = self._several and lmhead_tp_enable()
        own = getattr(self.proposer, "enable_shared_expert_dp", False)  # of 0.23.0
        return bool(splits or enable_sp(self._config) or own)

    @property
    def max_model_len(self) -> int:
        length: int = self.proposer.max_model_len
        return length

    def replays_target(self) -> bool:
        return bool(self.runner._use_aclgraph())

    def replays_in_step(self) -> bool:
        """See ``PassHost``.

        The graph that they agree on for the target's pass tells it. In mode FULL that graph is one
        for any batch of so many tokens.
        """
        tells: bool = self.runner.compilation_config.cudagraph_mode.separate_routine()
        return tells and self._sends_to_experts and not self._shares_rows_or_logits

    def copied_drafts(self) -> torch.Event | None:
        copied: torch.Event | None = self.runner.draft_token_ids_event
        return copied

    def share_rows(self, rows: int) -> tuple[int, torch.Tensor | None]:
        shared = self.runner._sync_metadata_across_dp(rows, is_draft_model=True)
        input_rows, across_ranks, _mode = shared
        return input_rows, across_ranks

    @contextlib.contextmanager
    def running(self, metadata: Metadata | None, batch: PassBatch) -> Iterator[None]:
        runner = self.runner
        heat = runner.eplb_heat_collection_status if runner.dynamic_eplb else False
        with set_ascend_forward_context(
            metadata,
            self._config,
            num_tokens=batch.input_rows,
            num_tokens_across_dp=batch.rows_across_ranks,
            num_actual_tokens=batch.rows,
            is_draft_model=True,
            eplb_heat_collection_status=heat,
        ):
            get_forward_context().moe_layer_index = 0
            yield

    @property
    def run(self) -> Callable[[Draft, Passes], torch.Tensor]:
        """See ``PassHost``; by vllm-ascend's own loop where ranks split the vocabulary."""
        return self._run_own_loop if lmhead_tp_enable() else run_passes

    def _run_own_loop(self, draft: Draft, passes: Passes) -> torch.Tensor:
        """That loop takes the metadata of all passes beforehand."""
        batch, embeddings = passes.batch, draft.buffers.embeddings
        drafted: torch.Tensor = self.proposer._runnable(
            num_input_tokens=batch.input_rows,
            batch_size=batch.requests,
            token_indices_to_sample=passes.sample_rows,
            target_positions=None,
            inputs_embeds=None if embeddings is None else embeddings[: batch.input_rows],
            multi_steps_attn_metadata=[passes.first, *passes.later()],
            num_tokens=batch.rows,
        )
        return drafted


def target_output(proposer: Any, given: dict[str, Any]) -> TargetOutput:
    """The output of the target's step, from the arguments of vllm-ascend's ``_propose``."""
    common, next_token_ids = given["common_attn_metadata"], given["next_token_ids"]
    token_ids, positions = given["target_token_ids"], given["target_positions"]
    requests, buffers = next_token_ids.shape[0], proposer.assembly.draft.buffers
    lengths = host_lengths(common)[:requests]
    bounds = common.seq_lens_cpu_upper_bound
    images = None
    if buffers.embeddings is not None:
        # A head's rows are the target's next tokens. vLLM's runner hands these over, and
        # vllm-ascend's, which replaces it, does not.
        scheduled = given["scheduler_output"]
        images = proposer.runner._gather_mm_embeddings(scheduled, shift_computed_tokens=1)
    return TargetOutput(
        token_ids=token_ids,
        # Slots and lengths follow positions in the sequence, and M-RoPE has others.
        positions=common.positions[: token_ids.shape[0]] if positions.dim() > 1 else positions,
        next_token_ids=next_token_ids,
        hidden_states=given["target_hidden_states"],
        num_rejected=given.get("num_rejected_tokens_gpu"),
        query_start_loc=common.query_start_loc[: requests + 1],
        query_start_loc_host=common.query_start_loc_cpu[: requests + 1],
        host_lengths=lengths,
        length_bounds=lengths if bounds is None else bounds[:requests],
        longest_row=common.max_query_len,
        rope_positions=rope_positions(buffers, positions),
        multimodal=images,
        common=common,
    )


def host_lengths(common: Any) -> torch.Tensor:
    """Lengths of the target's pass on the host; vllm-ascend keeps them exact for its builders."""
    lengths: torch.Tensor | None = common._seq_lens_cpu
    if lengths is None:
        lengths = common.seq_lens_cpu
    assert lengths is not None, "vllm-ascend hands over lengths on the host in every mode"
    return lengths


def _propose(self: Any, **given: Any) -> torch.Tensor:
    """Draft K tokens for each of B requests, or fewer if a step asks for fewer; int64 [B, K]."""
    agreed = requests_of_verify_step(given.get("target_model_batch_desc"))
    drafted: torch.Tensor = self.assembly.propose(target_output(self, given), agreed=agreed)
    return drafted[:, : given.get("num_speculative_tokens")]


def requests_of_verify_step(graph: BatchDescriptor | None) -> int | None:
    """Requests of the target's graph, if it serves verify steps alone; the same on all ranks."""
    return None if graph is None or not graph.uniform else graph.num_reqs


def _run_merged_draft(self: Any, **given: Any) -> torch.Tensor:
    """Run a dummy run's passes, or a proposal's if other ranks split the vocabulary."""
    if lmhead_tp_enable():
        drafted: torch.Tensor = stock(self)._run_merged_draft(**given)
        return drafted
    rows, requests = given["num_input_tokens"], given["batch_size"]
    sampled = given["token_indices_to_sample"]
    return self.assembly.run_dummy_passes(rows, requests, sampled)


@torch.inference_mode()
def run_dummy_window(self: Any, num_tokens: int, *, is_profile: bool) -> None:
    """Run a draft of mask tokens for the profile or with other ranks; no cache is written."""
    draft = self.assembly.draft
    rows, across_ranks = draft.share_rows(min(num_tokens, draft.buffers.token_ids.shape[0]))
    with set_ascend_forward_context(
        None,
        self.vllm_config,
        num_tokens=rows,
        num_tokens_across_dp=across_ranks,
        num_actual_tokens=rows,
        in_profile_run=is_profile,
        is_draft_model=True,
    ):
        run_dummy_pass(draft, rows, is_profile=is_profile)


def dummy_run(
    self: Any,
    num_tokens: int,
    *args: Any,
    aclgraph_runtime_mode: CUDAGraphMode = CUDAGraphMode.NONE,
    **options: Any,
) -> None:
    """As vllm-ascend's; also captures if the target was just captured for verify steps.

    A rank without requests replays with the others.
    """
    replays = aclgraph_runtime_mode == CUDAGraphMode.FULL
    if replays and self.assembly.is_captured(num_tokens):
        agreed = requests_of_verify_step(options.get("batch_descriptor"))
        if self.assembly.run_along(agreed) is not None:
            return
    if issubclass(self.assembly.kind, MaskTokens):
        run_dummy_window(self, num_tokens, is_profile=options.get("is_profile", False))
    else:
        stock(self).dummy_run(
            num_tokens, *args, aclgraph_runtime_mode=aclgraph_runtime_mode, **options
        )
    if replays:
        self.assembly.capture(num_tokens)


def prepare_next_token_ids_of_heads(
    self: Any,
    sampled: Any,
    requests: Any,
    gpu_input_batch: Any,
    discard_request_indices: Any,
    num_discarded_requests: int,
) -> Any:
    """The same, and the token after a prompt's chunk is the prompt's next token."""
    batch = batch_up_to_the_chunk(self.runner, gpu_input_batch, num_discarded_requests)
    return prepare_next_token_ids_padded(
        self, sampled, requests, batch, discard_request_indices, num_discarded_requests
    )


SEPARATE_CONFIGURATION: dict[str, Any] = {
    "_create_draft_vllm_config": _create_draft_vllm_config,
    "_get_model": _get_model,
    "load_model": load_draft,
    "prepare_inputs_padded": prepare_inputs_padded,
    "prepare_next_token_ids_cpu": prepare_next_token_ids_cpu,
    "prepare_next_token_ids_padded": prepare_next_token_ids_padded,
}
"""The draft's layers, metadata builders and rotary tables are the draft's own."""

CONFIGURATION_RECORDS = (records.DRAFT_CONFIG, TARGET_PARTS, records.PREPARED)

PLANNED: dict[str, Any] = {
    **SEPARATE_CONFIGURATION,
    "load_model": load_model,
    "initialize_attn_backend": initialize_attn_backend,
    "_propose": _propose,
    "_run_merged_draft": _run_merged_draft,
    "dummy_run": dummy_run,
}
"""Proposals are those of ``mkv_ascend.drafting``, over any number of KV groups."""

PLANNED_RECORDS = (*CONFIGURATION_RECORDS, records.PROPOSALS)

OF_A_MODEL = {**PLANNED, "_maybe_share_topk_indices": _maybe_share_topk_indices}
HEAD = {**PLANNED, "prepare_next_token_ids_padded": prepare_next_token_ids_of_heads}

DraftModelProposer = derive(AscendDraftModelProposer, "", OF_A_MODEL, *PLANNED_RECORDS)
HeadProposer = derive(AscendEagleProposer, "", HEAD, *PLANNED_RECORDS)
DflashProposer = derive(AscendDflashProposer, "", PLANNED, *PLANNED_RECORDS)
Step3p5MTPProposer = derive(
    AscendStep3p5MTPProposer, "", SEPARATE_CONFIGURATION, *CONFIGURATION_RECORDS
)
"""Step-3.5's layers lie in several KV groups with metadata each, which vllm-ascend gives them.

Each of its passes runs another layer over all rows, so that vllm-ascend's proposal is kept.
"""
Step3p5LayerProposer = derive(AscendStep3p5MTPProposer, "[one layer]", HEAD, *PLANNED_RECORDS)
"""One layer of Step-3.5's is drafted with as any other head, by a configuration as above."""

PROPOSERS: dict[str, type[Any]] = {
    "draft_model": DraftModelProposer,
    "eagle": HeadProposer,
    "eagle3": HeadProposer,
    "mtp": HeadProposer,
    "dflash": DflashProposer,
}

_KEPT = ("[context parallel]", SEPARATE_CONFIGURATION, *CONFIGURATION_RECORDS)

CONTEXT_PARALLEL_PROPOSERS: dict[str, type[Any]] = {
    "draft_model": derive(AscendDraftModelProposer, *_KEPT),
    **dict.fromkeys(("eagle", "eagle3", "mtp"), derive(AscendEagleProposer, *_KEPT)),
}
"""Proposers that keep vllm-ascend's own proposal, over one KV group.

Ranks keep a share of each sequence there, in a way that the host's adapter does not plan.
"""


def proposer_class(
    method: str, vllm_config: VllmConfig, plans_shares: Callable[[VllmConfig], bool]
) -> type[Any] | None:
    """Our proposer for a method of speculative decoding; None if vllm-ascend's own is kept.

    Methods without attention layers of their own keep it (ngram, suffix, medusa, hidden states).

    Args:
        plans_shares: whether our proposal serves the draft under context parallelism.
    """
    proposer = PROPOSERS.get(method)
    parallel = vllm_config.parallel_config
    in_shares = parallel.prefill_context_parallel_size * parallel.decode_context_parallel_size > 1
    if proposer is HeadProposer and vllm_config.speculative_config.use_step3p5_mtp():
        # Published drafting models have three layers. With ``num_nextn_predict_layers`` of 1 in
        # config.json vLLM builds the first one alone.
        drafting = vllm_config.speculative_config.draft_model_config.hf_config
        alone = drafting.num_nextn_predict_layers == 1 and not in_shares
        return Step3p5LayerProposer if alone else Step3p5MTPProposer
    if has_recurrent_layers(vllm_config):
        return proposer
    if in_shares:
        if proposer is DflashProposer and not is_replicated(vllm_config):
            raise NotImplementedError(
                "method dflash under prefill context parallelism: ranks have parts of a prompt, "
                "and neither vllm-ascend nor this plugin lays out the draft's context in parts. "
                "Leave prefill_context_parallel_size out, or choose another method."
            )
        if is_replicated(vllm_config):
            return proposer
        kept = CONTEXT_PARALLEL_PROPOSERS.get(method)
        return proposer if kept is not None and plans_shares(vllm_config) else kept
    return proposer


def strategy_of(method: str, vllm_config: VllmConfig) -> type[HostStrategy]:
    """The class of the strategy of such a draft."""
    if method == "dflash":
        return MaskTokens
    if method == "mtp" and vllm_config.speculative_config.use_gemma4_mtp():
        return TargetKeys
    return Recurrent if has_recurrent_layers(vllm_config) else Attention


def _load_apart(load: Callable[..., None], *args: Any) -> None:
    """Load a draft that the host proposes with; options on the target stay those of its layers."""
    with building(TARGET):
        load(*args)


def _proposer_and_strategy(
    method: str, vllm_config: VllmConfig, host: DraftHost
) -> tuple[type[Any] | None, type[HostStrategy] | None]:
    """Our proposer, if not vllm-ascend's own is kept; its strategy, if we make the proposals."""
    if host.keeps_proposer(method, vllm_config):
        return None, None
    if method in host.own_methods:
        return host.own_methods[method]
    proposer = proposer_class(method, vllm_config, host.plans_shares)
    ours = proposer in (*PROPOSERS.values(), Step3p5LayerProposer)
    return proposer, strategy_of(method, vllm_config) if ours else None


def create_proposer(
    method: str, vllm_config: VllmConfig, device: torch.device, runner: Any, host: DraftHost
) -> Any:
    """The proposer for a method of speculative decoding.

    Raises:
        ValueError: vllm-ascend does not know the method.
        NotImplementedError: an option is for our proposals, and vllm-ascend makes these.
    """
    proposer, kind = _proposer_and_strategy(method, vllm_config, host)
    if kind is None:
        giving_up.refuse_for_other_proposals(method, vllm_config)
        if proposer is None:
            made = get_spec_decode_method(method, vllm_config, device, runner)
            if host.keeps_proposer(method, vllm_config):
                made.load_model = functools.partial(_load_apart, made.load_model)
            return made
        made = proposer(vllm_config, device, runner)
        made.draft_host = host
        return made
    assert proposer is not None, "it has a strategy"
    enforce_eager = bool(vllm_config.speculative_config.enforce_eager)
    with without_graphs_of_the_host(vllm_config.speculative_config):
        made = proposer(vllm_config, device, runner)
    if issubclass(kind, Recurrent):
        # Rows of the first pass are the target's: none more for what the target sampled.
        made.net_num_new_slots_per_request = 0
    made.draft_host = host
    facts, passes = facts_of(made, enforce_eager=enforce_eager), PassesOfProposer(made)
    made.assembly = Assembly(facts, kind, host, passes, buffers_of(made))
    return made


@contextlib.contextmanager
def without_graphs_of_the_host(speculative_config: Any) -> Iterator[None]:
    """Let vllm-ascend's proposer run eagerly that is made while the block runs.

    Graphs of vllm-ascend's own know of one KV group; ours capture the passes. Its constructor alone
    asks; what the user has set is there for others.
    """
    with replaced(speculative_config, "enforce_eager", True):
        yield


def assembly_of(proposer: Any) -> Assembly | None:
    """The assembly of our proposer; None if vllm-ascend makes its proposals."""
    found: Assembly | None = getattr(proposer, "assembly", None)
    return found

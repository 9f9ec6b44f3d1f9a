# SPDX-License-Identifier: Apache-2.0
"""Records of what the proposers replace in vllm-ascend's, and of what they set."""

from __future__ import annotations

from mkv_ascend.adapters.patching import record

ASCEND_CONFIG = record(
    name="AscendConfig stays the target's",
    target="vllm_ascend.ascend_config:_ASCEND_CONFIG",
    reads=("vllm_ascend.ascend_config:init_ascend_config",),
    writes=("_ASCEND_CONFIG",),
    why="Building the draft's configuration makes the process-wide AscendConfig the draft's, for "
    "both models.",
    until="vllm-ascend keeps one AscendConfig per VllmConfig",
    test="tests/emulated/drafting/test_draft_isolation.py",
)

EXPERT_METHODS = record(
    name="expert methods per model",
    target=(
        "vllm_ascend.ops.fused_moe.moe_comm_method:_MoECommMethods",
        "vllm_ascend.ops.fused_moe.fused_moe_0_23_0:AscendMoERunner._forward_impl",
    ),
    reads=("vllm_ascend.ops.fused_moe.moe_comm_method:setup_moe_comm_method",),
    writes=("_forward_impl", "moe_comm_type", "moe_comm_method"),
    why="Methods of assigning tokens to experts are one set per process, made from the layer "
    "built last: a target with another number of experts than its draft gets the draft's. And the "
    "forward context names one for targets with experts only.",
    until="vllm-ascend keeps these methods per model or layer",
    test="tests/emulated/drafting/test_drafting_reference.py",
)

DRAFT_CONFIG = record(
    name="a draft's own configuration",
    target=(
        "vllm.v1.spec_decode.llm_base_proposer:SpecDecodeBaseProposer._create_draft_vllm_config",
        "vllm_ascend.spec_decode.llm_base_proposer:AscendSpecDecodeBaseProposer._get_model",
    ),
    writes=(
        "_draft_config",
        "enable_prefix_caching",
        "mamba_block_size",
        "mamba_cache_mode",
        "mamba_page_size_padded",
    ),
    why="Making the draft's configuration writes into the cache_config and the AscendConfig of the "
    "target.",
    until="vLLM's replace() copies the parts of a configuration",
    test="tests/emulated/drafting/test_draft_isolation.py"
    "::test_separate_draft_config_undoes_what_making_the_draft_changed",
)

REJECTED_COUNTS = record(
    name="counts of rejected tokens are int32",
    target="vllm_ascend.spec_decode.llm_base_proposer:"
    "AscendSpecDecodeBaseProposer.prepare_inputs_padded",
    why="Without Triton they are int64; npu_copy_and_expand_eagle_inputs documents int32.",
    until="vllm-ascend converts them",
    test="tests/emulated/drafting/test_proposers.py::test_counts_of_rejected_tokens_are_int32",
)

NEXT_TOKENS = record(
    name="the token after a chunk of a prompt",
    target="vllm_ascend.spec_decode.llm_base_proposer:"
    "AscendSpecDecodeBaseProposer.prepare_next_token_ids_padded",
    why="For eagle, eagle3 and mtp it is the last token of the whole prompt: heads keep a wrong "
    "key for each chunk.",
    until="vllm-ascend takes the token after the chunk",
    test="tests/emulated/drafting/test_proposers.py::test_the_token_after_a_chunk_is_the_prompts_next_one",
)

SEVERAL_GROUPS = record(
    name="a draft in several KV groups",
    target=(
        "vllm.v1.spec_decode.llm_base_proposer:SpecDecodeBaseProposer.validate_same_kv_cache_group",
        "vllm.v1.spec_decode.llm_base_proposer:SpecDecodeBaseProposer.initialize_attn_backend",
        "vllm_ascend.spec_decode.llm_base_proposer:AscendSpecDecodeBaseProposer.load_model",
    ),
    writes=(
        "attn_layer_names",
        "draft_attn_groups",
        "kv_cache_gid",
        "block_size",
        "kernel_block_size",
        "assembly",
        "net_num_new_slots_per_request",
    ),
    why="All of a draft's layers must lie in one KV group; of those on two backends all get the "
    "last group's metadata. Kernel blocks are looked up for group 0, and layers are listed by "
    "name, not in the order in which they run.",
    until="drafts have metadata for each group",
    test="tests/emulated/drafting/test_drafting_groups.py",
)

PROPOSALS = record(
    name="proposals from one plan",
    target="vllm_ascend.spec_decode.llm_base_proposer:AscendSpecDecodeBaseProposer._propose",
    reads=("vllm_ascend.spec_decode.llm_base_proposer:AscendSpecDecodeBaseProposer.__init__",),
    why="It makes one metadata object for all layers, computes positions and slots anew for each "
    "pass and group, never subtracts rejected tokens from the lengths of later passes, leaves the "
    "target's positions in the first pass's metadata, and eagerly cannot draft after a verify step "
    "that was padded for a graph.",
    until="vllm-ascend plans a proposal of several groups beforehand",
    test="tests/emulated/drafting/test_drafting_groups.py",
    stock="tests/emulated/graphs/test_stock_draft_graphs.py"
    "::test_stock_cannot_draft_eagerly_after_a_padded_verify_step",
)

PASSES = record(
    name="passes of a proposal",
    target="vllm_ascend.spec_decode.llm_base_proposer:"
    "AscendSpecDecodeBaseProposer._run_merged_draft",
    why="It computes positions anew between passes, and takes metadata whose lengths are complete "
    "before the first pass. Where sampling is split otherwise (LM head parallel, reduced sampling) "
    "it is called.",
    until="its loop takes positions and metadata of each pass from outside",
    test="tests/emulated/drafting/test_drafting_groups.py",
)

DRAFT_GRAPHS = record(
    name="passes of a draft are captured in a graph of their own",
    target="vllm_ascend.spec_decode.llm_base_proposer:AscendSpecDecodeBaseProposer.dummy_run",
    why="vllm-ascend makes the wrapper and its stream where a head shares the target's output "
    "layer, which draft_model overrides with nothing: capture fails in every mode with full "
    "graphs. Its replay reads the target's lengths and drops the token added for each request, "
    "hands out as many rows as its graph has tokens for, also more than there may be requests, and "
    "knows one KV group, one backend, and layers in the order of their names.",
    until="vllm-ascend captures draft_model with several KV groups",
    test="tests/emulated/graphs/test_draft_graphs.py",
    stock="tests/emulated/graphs/test_stock_draft_graphs.py",
)

GRAPH_PARAMETERS = record(
    name="parameters of captured launches, by draft",
    target="vllm_ascend.compilation.acl_graph:_draft_graph_params",
    reads=(
        "vllm_ascend.compilation.acl_graph:get_draft_graph_params",
        "vllm_ascend.compilation.acl_graph:set_draft_graph_params",
    ),
    writes=("_draft_graph_params",),
    why="vllm-ascend keeps the parameters of a draft's captured launches in one table of the "
    "process, which its updates read; each graph of ours has a table of its own, put there while "
    "the graph is captured or updated.",
    until="vllm-ascend keeps these tables with their graphs",
    test="tests/emulated/graphs/test_draft_graphs.py",
)

EXTRA_CONTEXT = record(
    name="fields of the forward context while a draft runs",
    target="vllm_ascend.ascend_forward_context:_EXTRA_CTX",
    reads=(
        "vllm_ascend.ascend_forward_context:_ExtraForwardContextProxy",
        "vllm_ascend.ascend_forward_context:set_ascend_forward_context",
    ),
    writes=(
        "num_tokens",
        "num_accept_tokens",
        "sinks",
        "capturing",
        "attn_metadata",
        "moe_layer_index",
    ),
    why="vllm-ascend's operators read from it how many tokens a pass has, whether it is captured, "
    "and its metadata. Its own proposer sets them for each pass, too.",
    until="vllm-ascend's operators take them as arguments",
    test="tests/emulated/graphs/test_draft_graphs.py",
)

EAGER_REQUEST = record(
    name="no stock graphs of a draft",
    target="vllm.config.speculative:SpeculativeConfig.enforce_eager",
    reads=("vllm_ascend.spec_decode.llm_base_proposer:AscendSpecDecodeBaseProposer.__init__",),
    writes=("enforce_eager",),
    why="vllm-ascend's proposer reads it in its constructor and then makes graphs of its own; ours "
    "makes them otherwise.",
    until="vllm-ascend captures draft_model with several KV groups",
    test="tests/emulated/graphs/test_draft_graphs.py",
)

MASK_TOKENS = record(
    name="mask tokens over several KV groups",
    target="vllm_ascend.spec_decode.dflash_proposer:AscendDflashProposer.dummy_run",
    reads=("vllm_ascend.spec_decode.dflash_proposer:AscendDflashProposer.set_inputs_first_pass",),
    why="Its inputs are laid out by a Triton kernel that knows one block table; a dummy run writes "
    "the context's keys to the slots of the last proposal.",
    until="vllm-ascend's dflash proposer takes slots of several groups",
    test="tests/emulated/drafting/test_drafting_blocks.py",
)

CONTEXT_LAYERS = record(
    name="slots of a dflash draft's layers",
    target="vllm.model_executor.models.qwen3_dflash:DFlashQwen3Model._build_fused_kv_buffers",
    reads=(
        "vllm.model_executor.models.qwen3_dflash:DFlashQwen3Model.precompute_and_store_context_kv",
    ),
    writes=("_attn_layers",),
    why="The model writes the context's keys of all of its layers to the slots of one KV group. "
    "Each layer is given a view of itself that writes to the slots of its own.",
    until="vLLM's dflash models take slots by layer",
    test="tests/emulated/drafting/test_drafting_blocks.py",
)

RECURRENT_SPECS = record(
    name="states of a recurrent draft",
    target="vllm.model_executor.layers.mamba.abstract:MambaBase.get_kv_cache_spec",
    writes=("get_kv_cache_spec",),
    why="vLLM keeps as many states of a layer as the target's verification needs; a draft's layers "
    "keep those that its own passes need to go back to what was accepted.",
    until="vLLM serves drafts with recurrent states",
    test="tests/emulated/recurrent/test_recurrent_drafts.py",
)

MLA_BUILDER = record(
    name="what a draft's MLA builder does not launch",
    target="vllm_ascend.attention.mla_v1:AscendMLAMetadataBuilder.build",
    reads=("vllm_ascend.attention.mla_v1:AscendMLAMetadataBuilder.__init__",),
    writes=("decode_threshold",),
    why="Each run converts positions and gathers cos_sin rows into one buffer, which had to be "
    "copied; and a draft model's verified rows, one more than the target's, were prefills.",
    until="vllm-ascend's builder takes cos_sin rows from outside",
    test="tests/emulated/drafting/test_drafting_cost.py"
    "::test_an_mla_draft_takes_its_rotary_rows_once_and_verified_rows_as_decodes",
)

METADATA = record(
    name="metadata of one group and pass for others",
    target=(
        "vllm_ascend.attention.attention_v1:AscendMetadata",
        "vllm_ascend.attention.mla_v1:AscendMLAMetadata",
        "vllm_ascend.attention.sfa_v1:AscendSFAMetadata",
        "vllm_ascend.attention.utils:AscendCommonAttentionMetadata",
    ),
    writes=(
        "_num_computed_tokens_cache",
        "_num_computed_tokens_cpu",
        "_seq_lens_cpu",
        "attn_mask",
        "attn_state",
        "block_table_tensor",
        "causal",
        "cos",
        "decode_token_per_req",
        "graph_pad_size",
        "input_positions",
        "is_prefilling",
        "max_query_len",
        "max_seq_lens",
        "num_actual_tokens",
        "num_computed_tokens_cpu",
        "num_input_tokens",
        "num_reqs",
        "positions",
        "query_start_loc",
        "query_start_loc_cpu",
        "seq_lens",
        "seq_lens_cpu",
        "seq_lens_cpu_upper_bound",
        "seq_lens_list",
        "sin",
        "slot_mapping",
        "spec_state_indices_tensor",
    ),
    why="What differs between groups and passes of a draft is set in copies of metadata that was "
    "built once: slots, block tables, positions, cos_sin rows and lengths. What builders take is "
    "set in copies of the target's.",
    until="vllm-ascend builds metadata once for several groups and passes",
    test="tests/emulated/drafting/test_draft_metadata.py",
)

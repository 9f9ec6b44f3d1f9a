# SPDX-License-Identifier: Apache-2.0
"""Records of what the proposers replace in vllm-ascend's, and of what they set."""

from __future__ import annotations

from mkv_ascend.adapters.patching import record

DRAFT_CONFIG = record(
    name="a draft's own configuration",
    target=(
        "vllm.v1.spec_decode.llm_base_proposer:SpecDecodeBaseProposer._create_draft_vllm_config",
        "vllm_ascend.spec_decode.llm_base_proposer:AscendSpecDecodeBaseProposer._get_model",
        "vllm_ascend.ascend_config:_ASCEND_CONFIG",
    ),
    reads=("vllm_ascend.ascend_config:init_ascend_config",),
    writes=(
        "_ASCEND_CONFIG",
        "_draft_config",
        "enable_prefix_caching",
        "mamba_block_size",
        "mamba_cache_mode",
        "mamba_page_size_padded",
    ),
    why="Making the draft's configuration writes into the cache_config of the target, and makes "
    "the process-wide AscendConfig the draft's, for both models.",
    until="vLLM's replace() copies the parts of a configuration, and vllm-ascend keeps one "
    "AscendConfig per VllmConfig",
    test="tests/emulated/drafting/test_draft_isolation.py"
    "::test_separate_draft_config_undoes_what_making_the_draft_changed",
)

PROPOSALS = record(
    name="proposals over several KV groups, from one plan",
    target=(
        "vllm.v1.spec_decode.llm_base_proposer:SpecDecodeBaseProposer.validate_same_kv_cache_group",
        "vllm.v1.spec_decode.llm_base_proposer:SpecDecodeBaseProposer.initialize_attn_backend",
        "vllm_ascend.spec_decode.llm_base_proposer:AscendSpecDecodeBaseProposer.load_model",
        "vllm_ascend.spec_decode.llm_base_proposer:AscendSpecDecodeBaseProposer._propose",
        "vllm_ascend.spec_decode.llm_base_proposer:AscendSpecDecodeBaseProposer._run_merged_draft",
        "vllm_ascend.spec_decode.llm_base_proposer:AscendSpecDecodeBaseProposer.dummy_run",
        "vllm_ascend.spec_decode.dflash_proposer:AscendDflashProposer.dummy_run",
        "vllm.config.speculative:SpeculativeConfig.enforce_eager",
    ),
    reads=(
        "vllm_ascend.spec_decode.llm_base_proposer:AscendSpecDecodeBaseProposer.__init__",
        "vllm_ascend.spec_decode.dflash_proposer:AscendDflashProposer.set_inputs_first_pass",
    ),
    writes=(
        "attn_layer_names",
        "draft_attn_groups",
        "kv_cache_gid",
        "block_size",
        "kernel_block_size",
        "assembly",
        "draft_host",
        "net_num_new_slots_per_request",
        "enforce_eager",
        "image_token_index",
    ),
    why="All of a draft's layers must lie in one KV group; of those on two backends all get the "
    "last group's metadata. Kernel blocks are looked up for group 0, and layers are listed by "
    "name, not in the order in which they run. Positions and slots are computed anew for each "
    "pass and group; host lengths of later passes keep the rejected tokens, and the first pass "
    "the target's positions. Eagerly there is no draft after a verify step that was padded for a "
    "graph. Graphs, which draft_model has none of, know one KV group and one backend, read the "
    "target's lengths, and hand out more rows than there may be requests; so vllm-ascend's "
    "constructor is told that the draft runs eagerly, and a dummy run captures ours. The inputs "
    "of mask tokens are laid out by a Triton kernel that knows one block table.",
    until="vllm-ascend plans and captures a proposal of several KV groups",
    test="tests/emulated/drafting/test_drafting_groups.py",
    stock="tests/emulated/graphs/test_stock_draft_graphs.py",
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

METADATA = record(
    name="metadata of one group and pass for others",
    target=(
        "vllm_ascend.attention.attention_v1:AscendMetadata",
        "vllm_ascend.attention.mla_v1:AscendMLAMetadata",
        "vllm_ascend.attention.sfa_v1:AscendSFAMetadata",
        "vllm_ascend.attention.utils:AscendCommonAttentionMetadata",
        "vllm_ascend.attention.mla_v1:AscendMLAMetadataBuilder.build",
    ),
    reads=("vllm_ascend.attention.mla_v1:AscendMLAMetadataBuilder.__init__",),
    writes=(
        "_num_computed_tokens_cache",
        "_num_computed_tokens_cpu",
        "_seq_lens_cpu",
        "actual_seq_lengths_key",
        "attn_mask",
        "attn_state",
        "block_table_tensor",
        "causal",
        "cos",
        "decode_threshold",
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
    "set in copies of the target's. Each run of MLA's builder converts positions and gathers "
    "cos_sin rows into one buffer; ours are taken once, from outside. And a draft model's verified "
    "rows, one more than the target's, would be prefills to it.",
    until="vllm-ascend builds metadata once for several groups and passes, with cos_sin rows from "
    "outside",
    test="tests/emulated/drafting/test_draft_metadata.py",
)

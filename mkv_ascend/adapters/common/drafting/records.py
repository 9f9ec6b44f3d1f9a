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
        "vllm.model_executor.layers.mamba.abstract:MambaBase.get_kv_cache_spec",
        "vllm.config.speculative:SpeculativeConfig.__post_init__",
        "vllm.distributed.parallel_state:_EP",
        "vllm_ascend.eplb.adaptor.vllm_adaptor:VllmEplbAdaptor._registered_moe_layers",
        "vllm.model_executor.layers.vocab_parallel_embedding:VocabParallelEmbedding.weight_loader",
    ),
    reads=(
        "vllm.config.speculative:SpeculativeConfig.verify_equal_vocab_size_if_draft_model",
        "vllm_ascend.ascend_config:init_ascend_config",
        "vllm_ascend.eplb.core.eplb_utils:init_eplb_config",
        "vllm_ascend.eplb.adaptor.vllm_adaptor:VllmEplbAdaptor.register_layer",
        "vllm.config.speculative:SpeculativeConfig.create_draft_parallel_config",
        "vllm.config.speculative:SpeculativeConfig.hf_config_override",
        "vllm.distributed.parallel_state:initialize_model_parallel",
        "vllm.distributed.parallel_state:init_model_parallel_group",
        "vllm.distributed.parallel_state:get_ep_group",
        "vllm.model_executor.models.deepseek_mtp:DeepSeekMultiTokenPredictorLayer.forward",
        "vllm_ascend.ops.rotary_embedding:AscendRotaryEmbedding.forward_oot",
    ),
    writes=(
        "_EP",
        "_ASCEND_CONFIG",
        "_INIT_VLLM_CONFIG",
        "_IS_MOE_MODEL",
        "_draft_config",
        "_registered_moe_layers",
        "draft_parallel_config",
        "enable_expert_parallel",
        "enable_prefix_caching",
        "eplb_config",
        "get_kv_cache_spec",
        "hf_config_override",
        "load_config",
        "mamba_block_size",
        "mamba_cache_mode",
        "mamba_page_size_padded",
        "max_model_len",
        "model_arch_config",
        "use_mtp",
        "use_sequence_parallel_moe",
        "weight_loader",
    ),
    why="Making the draft's configuration writes into the cache_config of the target, and makes "
    "the process-wide AscendConfig the draft's, for both models. And a draft's recurrent layers "
    "are asked for their states with the target's: they keep as many as its verification needs, "
    "not those from which their own passes can go back to what was accepted. And vLLM makes an MTP "
    "head of every draft whose family has one (Qwen3-Next, Qwen3.5, DeepSeek-V3, Nemotron-H), also "
    "where the method asked for is draft_model, or none is and the checkpoint has no layers of "
    "such a head: such a model cannot be a draft of its own. And ranks share experts only if the "
    "target's configuration names some: a draft's layers with experts stop in their constructor. "
    "And where ranks share tokens out beside experts, vllm-ascend 0.23.0 checks the draft's "
    "configuration for ranks of the target's experts, which vLLM does not tell a draft model of. "
    "And DeepSeek's drafting layer of vLLM 0.30.0 asks its block how ranks share its rows, which "
    "that of openPangu's layer, derived from it, does not say. And vllm-ascend 0.30.0rc2's "
    "rotary embeddings of method mtp gather positions from all ranks where these share tokens out "
    "beside experts, though each has all of them. And vLLM loads a draft model as it loads the "
    "target, whatever draft_load_config says. And with dynamic_eplb vllm-ascend means to move the "
    "experts of any draft, too: where there are not as many, of one size, as in the target, or "
    "vLLM 0.23.0 shares none out among ranks, the engine ends. And a target's own drafting layers "
    "are configured without --hf-overrides, so that they rotate otherwise than the target. And "
    "vLLM refuses a draft model whose embeddings are padded to another size than the target's, "
    "though both have one tokenizer.",
    until="vLLM's replace() copies the parts of a configuration, vllm-ascend keeps one "
    "AscendConfig per VllmConfig, and vLLM makes heads for the method mtp only, groups of ranks "
    "for a draft's experts too, and openPangu's blocks say how ranks share their rows. And "
    "vllm-ascend asks whether the draft itself has experts, and gathers no positions that each "
    "rank has. And vLLM loads draft models by draft_load_config, and vllm-ascend moves experts "
    "of the target alone where the draft's are others",
    test=(
        "tests/emulated/drafting/test_draft_isolation.py",
        "tests/emulated/drafting/test_draft_loading.py",
        "tests/emulated/drafting/test_padded_vocabulary.py",
        "tests/emulated/drafting/test_dynamic_experts.py::test_experts_of_a_draft_model_stay",
        "tests/emulated/recurrent/test_recurrent_drafts.py",
        "tests/emulated/drafting/test_drafting_ranks.py"
        "::test_a_draft_with_experts_serves_a_target_without_on_several_ranks",
        "tests/emulated/benchmarks/test_matrix.py::test_a_cell_ends_as_published",
        "tests/emulated/drafting/test_shared_tokens.py",
    ),
)

PROPOSALS = record(
    name="proposals over several KV groups, from one plan",
    target=(
        "vllm.v1.spec_decode.llm_base_proposer:SpecDecodeBaseProposer.initialize_attn_backend",
        "vllm_ascend.spec_decode.llm_base_proposer:AscendSpecDecodeBaseProposer._propose",
        "vllm_ascend.spec_decode.llm_base_proposer:AscendSpecDecodeBaseProposer._run_merged_draft",
        "vllm_ascend.spec_decode.llm_base_proposer:AscendSpecDecodeBaseProposer.dummy_run",
        "vllm_ascend.spec_decode.dflash_proposer:AscendDflashProposer.dummy_run",
        "vllm.config.speculative:SpeculativeConfig.enforce_eager",
        "vllm_ascend.worker.model_runner_v1:NPUModelRunner._get_drafter",
        "vllm.model_executor.models.qwen3_dflash:DFlashQwen3Model._build_fused_kv_buffers",
    ),
    reads=(
        "vllm_ascend.spec_decode.llm_base_proposer:AscendSpecDecodeBaseProposer.__init__",
        "vllm_ascend.spec_decode.dflash_proposer:AscendDflashProposer.set_inputs_first_pass",
        "vllm.model_executor.models.qwen3_dflash:DFlashQwen3Model.precompute_and_store_context_kv",
        "vllm.v1.spec_decode.gemma4:Gemma4Proposer._setup_gemma4_kv_sharing",
        "vllm.v1.worker.gpu_model_runner:GPUModelRunner._gather_mm_embeddings",
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
        "load_model",
        "supports_mm_inputs",
        "_attn_layers",
        "kv_sharing_target_layer_name",
    ),
    why="All of a draft's layers must lie in one KV group; of those on two backends all get the "
    "last group's metadata. Kernel blocks are looked up for group 0, and layers are listed by "
    "name, not in the order in which they run. Positions and slots are computed anew for each "
    "pass and group; host lengths of later passes keep the rejected tokens, and the first pass "
    "the target's positions. Eagerly there is no draft after a verify step that was padded for a "
    "graph. Graphs, which draft_model has none of, know one KV group and one backend, read the "
    "target's lengths, and hand out more rows than there may be requests; so vllm-ascend's "
    "constructor is told that the draft runs eagerly, and a dummy run captures ours. The inputs "
    "of mask tokens are laid out by a Triton kernel that knows one block table, and their model "
    "writes the context's keys of all of its layers to the slots of one KV group: each layer is "
    "given a view of itself that writes to its own. Layers of Gemma 4's head read caches of the "
    "target, from one position for all draft tokens: vllm-ascend 0.23.0 does not know such a head, "
    "and the proposer of 0.30.0rc2 drafts tokens that are not the head's own. Embeddings of images "
    "that vLLM's runner hands to heads are left out by vllm-ascend's, so that heads see "
    "placeholders; a draft model is asked to embed images, which it cannot (0.23.0).",
    until="vllm-ascend plans and captures a proposal of several KV groups, and vLLM's dflash "
    "models take slots by layer",
    test=(
        "tests/emulated/drafting/test_drafting_groups.py",
        "tests/emulated/drafting/test_drafting_blocks.py",
        "tests/emulated/drafting/test_pairs.py"
        "::test_an_mla_model_drafting_for_itself_is_always_accepted",
        "tests/emulated/drafting/test_drafting_reference.py"
        "::test_proposals_and_acceptance_are_the_references",
        "tests/emulated/drafting/test_drafting_ranks.py"
        "::test_a_draft_with_experts_serves_a_target_without_on_several_ranks",
        "tests/emulated/graphs/test_draft_graphs.py::test_independent_drafts",
        "tests/emulated/drafting/test_proposers.py"
        "::test_the_host_is_told_to_draft_eagerly_while_its_proposer_is_made",
        "tests/emulated/drafting/test_pictures.py",
    ),
    stock="tests/emulated/graphs/test_stock_draft_graphs.py",
)

PREPARED = record(
    name="what vllm-ascend prepares for a proposal",
    target=(
        "vllm_ascend.spec_decode.llm_base_proposer:"
        "AscendSpecDecodeBaseProposer.prepare_inputs_padded",
        "vllm_ascend.spec_decode.llm_base_proposer:"
        "AscendSpecDecodeBaseProposer.prepare_next_token_ids_padded",
        "vllm.v1.spec_decode.llm_base_proposer:SpecDecodeBaseProposer.prepare_next_token_ids_cpu",
    ),
    reads=("vllm.v1.worker.gpu_input_batch:CachedRequestState.get_token_id",),
    why="Without Triton counts of rejected tokens are int64; npu_copy_and_expand_eagle_inputs "
    "documents int32. For eagle, eagle3 and mtp the token after a chunk of a prompt is the last "
    "one of the whole prompt: heads keep a wrong key for each chunk. A prompt that is given as "
    "embeddings has no such token, and one that is longer than a step ends the engine.",
    until="vllm-ascend converts the counts, and takes the token after the chunk where there is one",
    test=(
        "tests/emulated/drafting/test_proposers.py::test_counts_of_rejected_tokens_are_int32",
        "tests/emulated/drafting/test_proposers.py"
        "::test_the_token_after_a_chunk_is_the_prompts_next_one",
        "tests/emulated/drafting/test_prompt_embeddings.py"
        "::test_tokens_of_a_prompt_of_embeddings_are_not_asked_for",
        "tests/emulated/drafting/test_prompt_embeddings.py",
    ),
)

PASSES = record(
    name="metadata, context and captured launches of a draft's passes",
    target=(
        "vllm_ascend.attention.attention_v1:AscendMetadata",
        "vllm_ascend.attention.mla_v1:AscendMLAMetadata",
        "vllm_ascend.attention.sfa_v1:AscendSFAMetadata",
        "vllm_ascend.attention.utils:AscendCommonAttentionMetadata",
        "vllm_ascend.attention.mla_v1:AscendMLAMetadataBuilder.build",
        "vllm_ascend.ascend_forward_context:_EXTRA_CTX",
        "vllm_ascend.compilation.acl_graph:_draft_graph_params",
    ),
    reads=(
        "vllm_ascend.attention.mla_v1:AscendMLAMetadataBuilder.__init__",
        "vllm_ascend.ascend_forward_context:_ExtraForwardContextProxy",
        "vllm_ascend.ascend_forward_context:set_ascend_forward_context",
        "vllm_ascend.compilation.acl_graph:get_draft_graph_params",
        "vllm_ascend.compilation.acl_graph:set_draft_graph_params",
    ),
    writes=(
        "_draft_graph_params",
        "_graph_params",
        "_num_computed_tokens_cache",
        "_num_computed_tokens_cpu",
        "_seq_lens_cpu",
        "actual_seq_lengths_key",
        "attn_mask",
        "attn_metadata",
        "attn_state",
        "block_table",
        "block_table_tensor",
        "capturing",
        "causal",
        "cos",
        "decode_threshold",
        "decode_token_per_req",
        "graph_pad_size",
        "input_positions",
        "is_prefilling",
        "max_query_len",
        "max_seq_lens",
        "moe_comm_type",
        "moe_layer_index",
        "num_accept_tokens",
        "num_actual_tokens",
        "num_computed_tokens_cpu",
        "num_input_tokens",
        "num_reqs",
        "num_tokens",
        "positions",
        "query_start_loc",
        "query_start_loc_cpu",
        "seq_lens",
        "seq_lens_cpu",
        "seq_lens_cpu_upper_bound",
        "seq_lens_list",
        "sin",
        "sinks",
        "slot_mapping",
        "spec_state_indices_tensor",
    ),
    why="What differs between groups and passes of a draft is set in copies of metadata that was "
    "built once: slots, block tables, positions, cos_sin rows and lengths. What builders take is "
    "set in copies of the target's. Each run of MLA's builder converts positions and gathers "
    "cos_sin rows into one buffer; ours are taken once, from outside. And a draft model's verified "
    "rows, one more than the target's, would be prefills to it. How many tokens a pass has, "
    "whether it is captured, and its metadata, operators read from the forward context, where "
    "vllm-ascend's own proposer sets them for each pass, too. Launches note what their updates "
    "need in one table of the process: each graph of ours puts its own there while it is captured "
    "or updated. How tokens reach their experts "
    "0.30.0rc2 asks of the target's configuration: those of a dense target's draft in no way.",
    until="vllm-ascend builds metadata once for several groups and passes, with cos_sin rows from "
    "outside, operators take the rest as arguments, and graphs keep what their updates change",
    test=(
        "tests/emulated/drafting/test_draft_metadata.py",
        "tests/emulated/graphs/test_draft_graphs.py",
        "tests/emulated/graphs/test_draft_launches.py",
        "tests/emulated/drafting/test_drafting_cost.py"
        "::test_an_mla_draft_takes_its_rotary_rows_once_and_verified_rows_as_decodes",
        "tests/emulated/drafting/test_drafting_ranks.py"
        "::test_a_draft_with_experts_serves_a_target_without_on_several_ranks",
        "tests/emulated/drafting/test_pairs.py"
        "::test_an_mla_model_drafting_for_itself_is_always_accepted",
        "tests/emulated/models/test_sparse_models.py::test_drafting_for_itself_is_always_accepted",
    ),
)

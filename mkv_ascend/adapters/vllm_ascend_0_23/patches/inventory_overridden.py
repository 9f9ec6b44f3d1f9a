# SPDX-License-Identifier: Apache-2.0
"""Methods that subclasses of ours make do something else than vllm-ascend's, and why.

Entries are those of ``patches.py``; nothing is to be applied, since the code named in ``target``
uses the subclass.
"""

from __future__ import annotations

from mkv_ascend.adapters.vllm_ascend_0_23.patches.inventory_replaced import Patch

DERIVED = "vllm-ascend's class has the method (attention/derived.py)"
MIXIN = "the mixin's method stands before vllm-ascend's, which must exist (drafting/proposers.py)"

OVERRIDES = (
    Patch(
        name="passes of a draft are captured in a graph of their own",
        target="dummy_run and _propose of vllm-ascend's proposers (drafting/replaying.py)",
        why="vllm-ascend makes the wrapper and its stream where a head shares the target's output "
        "layer, which draft_model overrides with nothing: capture fails in every mode with full "
        "graphs. Its replay reads the target's lengths and drops the token added for each request, "
        "hands out as many rows as its graph has tokens for, also more than there may be requests, "
        "and knows one KV group, one backend, and layers in the order of their names.",
        guard=MIXIN,
        test="tests/emulated/test_draft_graphs.py",
        stock="tests/emulated/test_stock_draft_graphs.py",
        until="vllm-ascend captures draft_model with several KV groups",
    ),
    Patch(
        name="verify steps of any method in full graphs",
        target="_update_full_graph_params_if_needed of NPUModelRunner (runner.py)",
        why="A verify step has K + 1 tokens per request. Where a captured launch of MLA is given "
        "this step's lengths, vllm-ascend knows so of the methods eagle, eagle3 and mtp, and "
        "otherwise pads the lengths to one for each token.",
        guard="the method exists; it reads runner.speculative_config (guards.py)",
        test="tests/emulated/test_draft_graphs.py::test_independent_drafts",
        until="AscendMLAImpl.update_graph_params looks at the number of draft tokens",
    ),
    Patch(
        name="a dummy verify step is a chunk",
        target="_build_attention_metadata of NPUModelRunner (runner.py)",
        why="Before capture, vllm-ascend runs dummy verify steps in the state of a decode, except "
        "for mtp. Layers with sinks then count one query per request and refuse the rest; real "
        "verify steps are in the state of a chunk.",
        guard="the method exists and is told max_query_len",
        test="tests/emulated/test_draft_graphs.py::test_heads_propose_as_in_eager_mode",
        until="_dummy_run takes the state of a verify step",
    ),
    Patch(
        name="chunks of prompts are no verify steps",
        target="_determine_batch_execution_and_padding of NPUModelRunner (runner.py)",
        why="A graph is chosen by shape, so a chunk of K + 1 tokens of a prompt is replayed as a "
        "verify step. A gated delta net then goes on from the state of another token; a request "
        "whose first chunk is one token, without drafts, from what the block held before.",
        guard="the method exists and takes force_uniform_decode",
        test="tests/emulated/test_state_graphs.py",
        until="vllm-ascend asks whether each prompt is fully computed",
    ),
    Patch(
        name="host lengths of verify steps of tokens drafted at once",
        target="speculative_config of the target's AscendAttentionMetadataBuilder, in full graphs "
        "(target_graphs.py)",
        why="With parallel drafting, which dflash is, it gives lengths on the device. The launch "
        "of layers with sinks takes them as a list on the host, so its capture fails.",
        guard="none: the runner keeps the lengths on the host right for every method",
        test="tests/emulated/test_drafting_blocks.py"
        "::test_one_group_chunks_prefix_hits_and_the_maximum_length",
        until="the builder gives the target's lengths on the host, as for other methods",
    ),
    Patch(
        name="MLA backends say that they are MLA",
        target="is_mla of AscendMLABackend and AscendSFABackend (attention/backends.py)",
        why="vLLM's MLAAttention takes an explicit backend only if it answers is_mla().",
        guard=DERIVED,
        test="tests/emulated/test_adapted_backends.py"
        "::test_backends_of_mla_answer_what_vllms_layer_asks",
        until="vllm-ascend's MLA backends answer is_mla()",
    ),
    Patch(
        name="MLA prefill keeps its dtype",
        target="AscendMLAImpl._compute_prefill_context and _forward_prefill "
        "(attention/adapted_mla.py)",
        why="A prefill is converted to bfloat16, and the cached context is gathered into a buffer "
        "of that dtype whatever the cache's is.",
        guard=DERIVED,
        test="tests/emulated/test_adapted_backends.py"
        "::test_cached_context_is_attended_to_in_the_dtype_of_the_cache",
        until="vllm-ascend gathers the context in the cache's dtype",
    ),
    Patch(
        name="rows are cast to the cache's dtype",
        target="forward of the implementations of AscendAttentionBackend and AscendFABackend, for "
        "layers whose cache has another plain dtype than the model (attention/cache_dtype.py)",
        why="Queries, keys and values are handed over in the model's dtype; the operators take one "
        "dtype, the cache's.",
        guard=DERIVED,
        test="tests/emulated/test_layout_engines.py"
        "::test_the_drafts_cache_may_have_a_dtype_of_its_own",
        until="vllm-ascend casts them",
    ),
    Patch(
        name="MLA builders take their group's block size",
        target="__init__ of the metadata builders of AscendMLABackend and AscendSFABackend "
        "(attention/group_blocks.py)",
        why="They read the block size of the cache configuration; groups have blocks of their own.",
        guard=DERIVED,
        test="tests/emulated/test_adapted_backends.py"
        "::test_builders_of_mla_take_the_block_size_of_their_group",
        until="vllm-ascend's builders read the block size of the spec that they are given",
    ),
    Patch(
        name="flash_attention_3 takes the whole batch",
        target="AscendFAImpl.forward_impl (attention/adapted_flash_attention_3.py)",
        why="Decodes are attended to without a causal mask and with block tables cut at the number "
        "of their tokens: wrong for a verify step, whose decodes have several.",
        guard=DERIVED,
        test="tests/emulated/test_pairs.py::test_target_on_flash_attention_3_verifies_drafts",
        until="vllm-ascend splits the batch by requests and masks decodes of several tokens",
    ),
    Patch(
        name="metadata builders of a draft",
        target="__init__ and build of the draft's metadata builders (attention/backends.py)",
        why="Their caller gives them the target's configuration, the rotary tables are the "
        "process's, and the rotary rows of an MLA decode are views of one buffer for all steps.",
        guard=DERIVED,
        test="tests/emulated/test_draft_isolation.py"
        "::test_builders_of_a_draft_see_its_configuration_and_tables",
        until="vllm-ascend creates a draft's builders with the draft's configuration and tables",
    ),
    Patch(
        name="what a draft's MLA builder does not launch",
        target="positions, query_start_loc and rotary tables of AscendMLAMetadataBuilder.build, "
        "and its decode_threshold (drafting/sharing.py, attention/rope_tables.py, "
        "drafting/proposing.py)",
        why="Each run converts positions and gathers rotary rows into one buffer, which "
        "had to be copied; and a draft model's verified rows, one more than the target's, were "
        "prefills.",
        guard=DERIVED,
        test="tests/emulated/test_drafting_cost.py"
        "::test_an_mla_draft_takes_its_rotary_rows_once_and_verified_rows_as_decodes",
        until="vllm-ascend's builder takes rotary rows from outside",
    ),
    Patch(
        name="a draft's own configuration",
        target="AscendSpecDecodeBaseProposer._create_draft_vllm_config and _get_model "
        "(drafting/proposers.py)",
        why="Making the draft's configuration writes into the cache_config and the AscendConfig "
        "of the target (drafting/draft_config.py).",
        guard=MIXIN,
        test="tests/emulated/test_draft_isolation.py"
        "::test_separate_draft_config_undoes_what_making_the_draft_changed",
        until="vLLM's replace() copies the parts of a configuration",
    ),
    Patch(
        name="counts of rejected tokens are int32",
        target="AscendSpecDecodeBaseProposer.prepare_inputs_padded (drafting/proposers.py)",
        why="Without Triton they are int64; npu_copy_and_expand_eagle_inputs documents int32.",
        guard=MIXIN,
        test="tests/emulated/test_proposers.py::test_counts_of_rejected_tokens_are_int32",
        until="vllm-ascend converts them",
    ),
    Patch(
        name="states go back to what was accepted",
        target="build of vLLM's builders of Mamba2 and short convolutions, while "
        "NPUModelRunner._build_attention_metadata runs (patches/accepted_tokens.py)",
        why="vllm-ascend tells the numbers of accepted tokens only to the builder of the gated "
        "delta net. The others count a verification as part of a prompt, whose rejected tokens "
        "stay in the state.",
        guard="the numbers are an attribute of the runner (runner.py)",
        test="tests/emulated/test_mamba_models.py::test_states_are_taken_back_to_what_was_accepted",
        until="vllm-ascend hands them to every builder of states",
    ),
    Patch(
        name="kernel of Mamba's state update",
        target="NPUModelRunner.initialize_kv_cache (patches/mamba_kernels.py)",
        why="vLLM's runner chooses the kernel there, vllm-ascend's never does: every decode of a "
        "Mamba2 model stops.",
        guard="vLLM has initialize_mamba_ssu_backend (imported)",
        test="tests/emulated/test_mamba_models.py",
        until="vllm-ascend calls initialize_mamba_ssu_backend",
    ),
    Patch(
        name="the token after a chunk of a prompt",
        target="AscendSpecDecodeBaseProposer.prepare_next_token_ids_padded, for eagle, eagle3 and "
        "mtp (drafting/next_tokens.py)",
        why="It is the last token of the whole prompt: heads keep a wrong key for each chunk.",
        guard=MIXIN,
        test="tests/emulated/test_proposers.py"
        "::test_the_token_after_a_chunk_is_the_prompts_next_one",
        until="vllm-ascend takes the token after the chunk",
    ),
    Patch(
        name="a draft in several KV groups",
        target="SpecDecodeBaseProposer.validate_same_kv_cache_group and initialize_attn_backend, "
        "AscendSpecDecodeBaseProposer.load_model (drafting/grouped.py)",
        why="All of a draft's layers must lie in one KV group; of those on two backends all get "
        "the last group's metadata. Kernel blocks are looked up for group 0, and layers are "
        "listed by name, not in the order in which they run.",
        guard=MIXIN,
        test="tests/emulated/test_drafting_groups.py",
        until="drafts have metadata for each group",
    ),
    Patch(
        name="proposals from one plan",
        target="AscendSpecDecodeBaseProposer._propose (drafting/proposing.py)",
        why="It makes one metadata object for all layers, computes positions and slots anew for "
        "each step and group, never subtracts rejected tokens from the lengths of later steps, "
        "leaves the target's positions in the first pass's metadata, and eagerly cannot draft "
        "after a verify step that was padded for a graph.",
        guard=MIXIN,
        test="tests/emulated/test_drafting_groups.py",
        stock="tests/emulated/test_stock_draft_graphs.py"
        "::test_stock_cannot_draft_eagerly_after_a_padded_verify_step",
        until="vllm-ascend plans a proposal of several groups beforehand",
    ),
    Patch(
        name="passes of a proposal",
        target="AscendSpecDecodeBaseProposer._run_merged_draft (drafting/steps.py)",
        why="It computes positions anew between passes, and takes metadata whose lengths are "
        "complete before the first pass. Where sampling is split otherwise (LM head parallel, "
        "reduced sampling) it is called.",
        guard=MIXIN,
        test="tests/emulated/test_drafting_groups.py",
        until="its loop takes positions and metadata of each step from outside",
    ),
    Patch(
        name="a block of masks over several KV groups",
        target="AscendDflashProposer.dummy_run, and its share of _propose "
        "(drafting/proposing_blocks.py)",
        why="Its inputs are laid out by a Triton kernel that knows one block table; a dummy run "
        "writes the context's keys to the slots of the last proposal.",
        guard=MIXIN,
        test="tests/emulated/test_drafting_blocks.py",
        until="vllm-ascend's dflash proposer takes slots of several groups",
    ),
    Patch(
        name="specs of latents",
        target="NPUModelRunner.get_kv_cache_spec (kv_cache/mla_specs.py)",
        why="Whether layers have an indexer, and of what sizes, is asked of the target's "
        "configuration for the draft's layers too.",
        guard="none: what does not fit its layer in vllm-ascend's answer is replaced",
        test="tests/emulated/test_latent_specs.py",
        until="vllm-ascend asks the layer",
    ),
    Patch(
        name="caches of a draft beside DeepSeek-V4",
        target="NPUModelRunner.initialize_kv_cache_tensors (runner.py)",
        why="With that target the caches of all layers are bound in a list, as its own take them; "
        "the draft's find no keys in it.",
        guard="vllm-ascend's method is called; only layers of vLLM's classes that hold a list are "
        "bound again",
        test="tests/emulated/test_deepseek_v4.py::test_dense_draft",
        until="vllm-ascend asks the layer how it takes its cache",
    ),
    Patch(
        name="the target's pass without the draft",
        target="NPUModelRunner._build_attention_metadata (runner.py)",
        why="Metadata is built for the draft's layers too, which nobody reads in the target's "
        "pass, and for each KV group anew where groups differ by nothing but their block table.",
        guard="vllm-ascend's method is called for the groups left; a builder is shared "
        "only where drafting/sharing.py or drafting/shared_states.py knows it",
        test="tests/emulated/test_drafting_cost.py"
        "::test_the_targets_pass_costs_what_it_costs_without_a_draft",
        until="vllm-ascend leaves the draft's groups out and builds once per distinct need",
    ),
    Patch(
        name="slots of the target in one launch",
        target="MultiGroupBlockTable.compute_slot_mapping of the runner's block tables "
        "(target_pass.py)",
        why="A kernel is launched for each KV group, those that only the draft uses included.",
        guard="none: not with context parallelism or compressed caches",
        test="tests/emulated/test_drafting_cost.py"
        "::test_equal_groups_of_a_target_share_builder_and_slots",
        until="vllm-ascend computes the slots of all groups in one launch",
    ),
    Patch(
        name="host lengths for a draft",
        target="NPUModelRunner._needs_seq_lens_cpu_sync (runner.py)",
        why="It is decided by the target's backend alone; a draft's builder may read lengths on "
        "the host when the target's does not.",
        guard="none: set after vllm-ascend has set it",
        test="tests/emulated/test_platform.py"
        "::test_host_lengths_are_kept_right_when_any_layer_reads_them",
        until="vllm-ascend asks the backends of all layers",
    ),
    Patch(
        name="layers that share in groups of unlike pages",
        target="GPUModelRunner.maybe_add_kv_sharing_layers_to_kv_cache_groups (runner.py)",
        why="Such layers join the group of their owner, whose specs by layer then lack them.",
        guard="none: adds to what vLLM's method has done",
        test="tests/emulated/test_shared_caches.py"
        "::test_a_layer_that_shares_joins_a_group_of_unlike_pages",
        until="vLLM's method adds the spec",
    ),
    Patch(
        name="a recurrent draft reads prefix hits",
        target="_update_states and propose_draft_token_ids of NPUModelRunner (runner.py)",
        why="Of tokens that were not computed in a step of its request a recurrent draft has no "
        "state; the draft reads them before it proposes (rebuilding_states.py).",
        guard="the methods exist; vllm-ascend's are called",
        test="tests/emulated/test_hits_of_recurrent_drafts.py",
        until="vLLM serves drafts with recurrent layers behind prefix hits",
    ),
    Patch(
        name="zeroing of blocks",
        target="NPUModelRunner._init_kv_zero_meta (runner.py)",
        why="vllm-ascend's zeroer takes layers of two tensors with pages of one size, and leaves "
        "out the padding and the states of a block.",
        guard="none: where caches are not planned vllm-ascend's is called",
        test="tests/emulated/test_block_zeroer.py"
        "::test_exactly_these_blocks_become_zero_in_every_layer",
        until="vllm-ascend zeroes by the bytes of a block",
    ),
)

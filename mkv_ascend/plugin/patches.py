# SPDX-License-Identifier: Apache-2.0
"""Every place where code of vLLM or vllm-ascend is replaced: what, why, guard, test, until when.

A subclass or an official hook is always tried first. ``PATCHES`` had neither: each checks before it
acts that the code it replaces still looks as it did (its guard), refuses to start otherwise, and
may be applied twice. ``OVERRIDES`` are methods that a subclass of ours makes do something else than
vllm-ascend's. ``python -m mkv_ascend.plugin.patches`` prints the inventory of docs/patches.md.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module


@dataclass(frozen=True)
class Patch:
    """One replacement of foreign code."""

    name: str
    target: str
    why: str
    guard: str
    test: str
    """File of the test that fails without it, or ``file::function``."""
    until: str
    apply: Callable[[], None] | None = None
    """Applies it in a worker process; None when the code named in ``guard`` applies it."""


def _install(module: str) -> Callable[[], None]:
    """``install`` of a module of this room, which is imported only when it is called."""
    return lambda: import_module(f"mkv_ascend.plugin.{module}").install()


PATCHES = (
    Patch(
        name="vllm-ascend's platform stands aside",
        target="vllm_ascend.register (code object)",
        why="vLLM accepts one out-of-tree platform; with both installed it would refuse to start.",
        guard="register is a plain function without free variables (plugin/entry.py)",
        test="tests/emulated/test_seat.py",
        until="vLLM lets one platform plugin build on another",
    ),
    Patch(
        name="backend per layer",
        target="vllm Attention.__init__ and MLAAttention.__init__",
        why="The platform's method that chooses a backend is told no layer, and its answer is "
        "cached for all of them. Both constructors take attn_backend; models do not pass it.",
        guard="both constructors have the parameters attn_backend and prefix",
        test="tests/emulated/test_backend_choice.py",
        until="vLLM passes the layer to Platform.get_attn_backend_cls or has "
        "attention_config.backend_per_kind",
        apply=_install("layers"),
    ),
    Patch(
        name="window bound",
        target="AscendAttentionBackendImpl.sliding_window (attribute of each instance)",
        why="A sliding window of W keeps the query's own key and the W - 1 before it. vllm-ascend "
        "passes W as pre_tokens to fused_infer_attention_score, whose documented bound and "
        "golden test keep pre_tokens + 1 keys: one too many. W - 1 is passed instead. "
        "attention.window_bound = 'vllm_ascend' leaves W.",
        guard="the implementation holds the layer's window in sliding_window (plugin/layers.py)",
        test="tests/emulated/test_models.py::test_tokens_are_those_of_hugging_face",
        until="vllm-ascend passes sliding_window - 1, or hardware shows an exclusive bound",
    ),
    Patch(
        name="layers without keys of their own",
        target="AscendAttentionBackendImpl.reshape_and_cache (attribute of such instances)",
        why="Layers that read another layer's cache (Gemma 3n, Gemma 4) have no keys. vllm-ascend "
        "writes what they pass over the owner's, and attends to it in a prefill.",
        guard="the implementation has the method (plugin/layers.py)",
        test="tests/emulated/test_shared_caches.py::test_stock_writes_over_the_keys_of_the_owner",
        until="vllm-ascend looks at kv_sharing_target_layer_name before it writes",
    ),
    Patch(
        name="head size of values",
        target="AscendAttentionBackendImpl.head_size (attribute of each instance)",
        why="The implementation views its output by it, with as many elements as values have. "
        "Where values have another head size than keys it is set to theirs.",
        guard="the implementation holds the layer's head size in head_size "
        "(plugin/unequal_heads.py)",
        test="tests/emulated/test_layout_engines.py::test_keys_of_192_and_values_of_128",
        until="vllm-ascend views its output by the head size of values",
    ),
    Patch(
        name="projection with values of another size",
        target="vllm_ascend.ops.linear.AscendQKVParallelLinear.__init__",
        why="It takes v_head_size and gives values as many rows as keys.",
        guard="the constructor takes head_size and v_head_size, and its output sizes are those of "
        "queries, keys and values (plugin/unequal_heads.py)",
        test="tests/emulated/test_layout_engines.py::test_keys_of_192_and_values_of_128",
        until="vllm-ascend's projection counts values by v_head_size",
    ),
    Patch(
        name="model runner of the worker",
        target="vllm_ascend.worker.worker.NPUModelRunner (during init_device)",
        why="NPUWorker.init_device names the runner's class by a global of its module.",
        guard="the module has that global (guards.replaced)",
        test="tests/emulated/test_backend_choice.py",
        until="NPUWorker takes the runner's class from an overridable method",
    ),
    Patch(
        name="AscendConfig stays the target's",
        target="vllm_ascend.ascend_config._ASCEND_CONFIG (put back after the draft is built)",
        why="Building the draft's configuration makes the process-wide AscendConfig the draft's, "
        "for both models.",
        guard="the module has that global (drafting/draft_config.py)",
        test="tests/emulated/test_draft_isolation.py",
        until="vllm-ascend keeps one AscendConfig per VllmConfig",
    ),
    Patch(
        name="expert methods per model",
        target="vllm_ascend.ops.fused_moe.moe_comm_method._MoECommMethods (put back after the "
        "draft is built) and _forward_impl of the runners of the draft's experts",
        why="Methods of dealing out tokens to experts are one set per process, made from the layer "
        "built last: a target with another number of experts than its draft gets the draft's.",
        guard="the module has that dict, and layers a runner with that method "
        "(drafting/expert_methods.py)",
        test="tests/emulated/test_drafting_reference.py",
        until="vllm-ascend keeps these methods per model or layer",
    ),
    Patch(
        name="rotary tables per model",
        target="vllm_ascend.ops.rotary_embedding (module globals, while a draft is built and "
        "while its metadata builders work)",
        why="The tables are one set per process: a draft with another rotary base spoils the "
        "target's or gets them.",
        guard="the module has all nine globals (attention/rope_tables.py)",
        test="tests/emulated/test_draft_isolation.py",
        until="vllm-ascend keeps rotary tables per model",
    ),
    Patch(
        name="KV groups of target and draft",
        target="vllm.v1.core.kv_cache_utils: get_kv_cache_groups, is_kv_cache_spec_uniform, "
        "_pool_bytes_per_block, get_kv_cache_config_from_groups, "
        "_max_memory_usage_bytes_from_groups, _check_enough_kv_cache_memory, "
        "get_max_concurrency_for_kv_cache_config",
        why="vLLM's grouping wants one page size: it refuses pairs (MLA with a window draft) and "
        "models (MLA with recurrent states), or splits all groups to single layers. Groups of "
        "unlike pages then need their own counting of blocks, memory and concurrency, which comes "
        "from the plan. The memory check lets start engines that have no block for vLLM's own null "
        "block, whose first long request waits for ever. And keys of one size with values of "
        "several count as one spec, the first layer's.",
        guard="the functions have the parameters that plugin/engine_core.py names; each hands over "
        "to the original for layers that are not planned",
        test="tests/emulated/test_layout_groups.py",
        until="vLLM groups layers of unlike pages, or the grouping is a hook of the platform",
    ),
    Patch(
        name="prefix hits of unlike groups",
        target="AscendHybridKVCacheCoordinator.find_longest_cache_hit",
        why="Groups that keep all tokens and differ in block size or in the spec of their first "
        "layer are looked up one after another; only the first is cut to the length that all "
        "agree on, the others are handed blocks beyond the hit.",
        guard="the method takes block_hashes and max_cache_hit_length (plugin/prefix_hits.py)",
        test="tests/emulated/test_layout_block_sizes.py"
        "::test_no_group_is_handed_blocks_beyond_the_hit",
        until="vllm-ascend cuts every group that keeps all tokens to the hit",
    ),
    Patch(
        name="blocks beside states",
        target="vllm HybridAttentionMambaModelConfig.verify_and_update_config (vllm-ascend's)",
        why="It asserts that attention blocks can be made so large that their keys are as many "
        "bytes as a recurrent state, which its own caches need and planned ones do not. Models "
        "with other sizes are refused.",
        guard="the method takes vllm_config; only that assertion is passed over "
        "(plugin/state_blocks.py)",
        test="tests/emulated/test_hybrid_engines.py"
        "::test_states_that_vllm_ascend_cannot_align_are_served",
        until="vllm-ascend's caches need no equal sizes",
        apply=_install("state_blocks"),
    ),
    Patch(
        name="dense layers beside MLA",
        target="vllm Attention.get_kv_cache_spec",
        why="A dense layer with a sliding window refuses when the model has MLA, and is asked "
        "about the target's configuration also where it is the draft's.",
        guard="the method takes self and vllm_config (plugin/dense_specs.py)",
        test="tests/emulated/test_layout_engines.py",
        until="vLLM asks the layer, or hands over the draft's configuration",
    ),
)


DERIVED = "vllm-ascend's class has the method (attention/derived.py)"
MIXIN = "the mixin's method stands before vllm-ascend's, which must exist (drafting/proposers.py)"

OVERRIDES = (
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
        "and leaves the target's positions in the first pass's metadata.",
        guard=MIXIN,
        test="tests/emulated/test_drafting_groups.py",
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
        name="specs of latents",
        target="NPUModelRunner.get_kv_cache_spec (plugin/latent_specs.py)",
        why="Whether layers have an indexer, and of what sizes, is asked of the target's "
        "configuration for the draft's layers too.",
        guard="none: what does not fit its layer in vllm-ascend's answer is replaced",
        test="tests/emulated/test_latent_specs.py",
        until="vllm-ascend asks the layer",
    ),
    Patch(
        name="the target's pass without the draft",
        target="NPUModelRunner._build_attention_metadata (plugin/model_runner.py)",
        why="Metadata is built for the draft's layers too, which nobody reads in the target's "
        "pass, and for each KV group anew where groups differ by nothing but their block table.",
        guard="vllm-ascend's method is called for the groups left; a builder is shared "
        "only where drafting/sharing.py knows it",
        test="tests/emulated/test_drafting_cost.py"
        "::test_the_targets_pass_costs_what_it_costs_without_a_draft",
        until="vllm-ascend leaves the draft's groups out and builds once per distinct need",
    ),
    Patch(
        name="slots of the target in one launch",
        target="MultiGroupBlockTable.compute_slot_mapping of the runner's block tables "
        "(plugin/target_pass.py)",
        why="A kernel is launched for each KV group, those that only the draft uses included.",
        guard="none: not with context parallelism or compressed caches",
        test="tests/emulated/test_drafting_cost.py"
        "::test_equal_groups_of_a_target_share_builder_and_slots",
        until="vllm-ascend computes the slots of all groups in one launch",
    ),
    Patch(
        name="host lengths for a draft",
        target="NPUModelRunner._needs_seq_lens_cpu_sync (plugin/model_runner.py)",
        why="It is decided by the target's backend alone; a draft's builder may read lengths on "
        "the host when the target's does not.",
        guard="none: set after vllm-ascend has set it",
        test="tests/emulated/test_platform.py"
        "::test_host_lengths_are_kept_right_when_any_layer_reads_them",
        until="vllm-ascend asks the backends of all layers",
    ),
    Patch(
        name="layers that share in groups of unlike pages",
        target="GPUModelRunner.maybe_add_kv_sharing_layers_to_kv_cache_groups "
        "(plugin/model_runner.py)",
        why="Such layers join the group of their owner, whose specs by layer then lack them.",
        guard="none: adds to what vLLM's method has done",
        test="tests/emulated/test_shared_caches.py"
        "::test_a_layer_that_shares_joins_a_group_of_unlike_pages",
        until="vLLM's method adds the spec",
    ),
    Patch(
        name="zeroing of blocks",
        target="NPUModelRunner._init_kv_zero_meta (plugin/model_runner.py)",
        why="vllm-ascend's zeroer takes layers of two tensors with pages of one size, and leaves "
        "out the padding and the states of a block.",
        guard="none: where caches are not planned vllm-ascend's is called",
        test="tests/emulated/test_block_zeroer.py"
        "::test_exactly_these_blocks_become_zero_in_every_layer",
        until="vllm-ascend zeroes by the bytes of a block",
    ),
)


def apply_in_worker() -> None:
    """Apply every patch that a worker process needs before a model is built. Idempotent."""
    for patch in PATCHES:
        if patch.apply is not None:
            patch.apply()


def markdown() -> str:
    """The inventory as Markdown, one section per entry."""
    parts = [
        "## Replaced in place",
        *map(_section, PATCHES),
        "## Replaced in subclasses",
        *map(_section, OVERRIDES),
    ]
    return "\n\n".join(parts)


def _section(patch: Patch) -> str:
    rows = [
        ("Replaces", patch.target),
        ("Why", patch.why),
        ("Guard", patch.guard),
        ("Test", f"`{patch.test}`"),
        ("Can go when", patch.until),
    ]
    lines = [f"- **{title}**: {text}" for title, text in rows]
    return f"### {patch.name}\n\n" + "\n".join(lines)


if __name__ == "__main__":
    print(markdown())

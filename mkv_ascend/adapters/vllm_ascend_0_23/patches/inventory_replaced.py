# SPDX-License-Identifier: Apache-2.0
"""Code of vLLM and vllm-ascend that is replaced in place: what, why, guard, test, until when.

A subclass or an official hook is always tried first. ``PATCHES`` had neither: each checks before it
acts that the code it replaces still looks as it did (its guard), refuses to start otherwise, and
may be applied twice. What subclasses of ours replace is in ``overrides.py``.
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
    stock: str = ""
    """Test that shows vllm-ascend's own code failing, where it is another than ``test``."""
    apply: Callable[[], None] | None = None
    """Applies it in a worker process; None when the code named in ``guard`` applies it."""


def _install(module: str) -> Callable[[], None]:
    """``install`` of a module which is imported only when it is called."""
    return lambda: import_module(f"mkv_ascend.adapters.vllm_ascend_0_23.{module}").install()


PATCHES = (
    Patch(
        name="vllm-ascend's platform stands aside",
        target="vllm_ascend.register (code object)",
        why="vLLM accepts one out-of-tree platform; with both installed it would refuse to start.",
        guard="register is a plain function without free variables (platform_slot.py)",
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
        apply=_install("attention.layers"),
    ),
    Patch(
        name="window bound",
        target="AscendAttentionBackendImpl.sliding_window (attribute of each instance)",
        why="A sliding window of W keeps the query's own key and the W - 1 before it. vllm-ascend "
        "passes W as pre_tokens to fused_infer_attention_score, whose documented bound and "
        "golden test keep pre_tokens + 1 keys: one too many. W - 1 is passed instead. "
        "attention.window_bound = 'vllm_ascend' leaves W.",
        guard="the implementation holds the layer's window in sliding_window (attention/layers.py)",
        test="tests/emulated/test_models.py::test_tokens_are_those_of_hugging_face",
        until="vllm-ascend passes sliding_window - 1, or hardware shows an exclusive bound",
    ),
    Patch(
        name="layers without keys of their own",
        target="AscendAttentionBackendImpl.reshape_and_cache (attribute of such instances)",
        why="Layers that read another layer's cache (Gemma 3n, Gemma 4) have no keys. vllm-ascend "
        "writes what they pass over the owner's, and attends to it in a prefill.",
        guard="the implementation has the method (attention/layers.py)",
        test="tests/emulated/test_shared_caches.py::test_stock_writes_over_the_keys_of_the_owner",
        until="vllm-ascend looks at kv_sharing_target_layer_name before it writes",
    ),
    Patch(
        name="head size of values",
        target="AscendAttentionBackendImpl.head_size (attribute of each instance)",
        why="The implementation views its output by it, with as many elements as values have. "
        "Where values have another head size than keys it is set to theirs.",
        guard="the implementation holds the layer's head size in head_size "
        "(patches/value_head_size.py)",
        test="tests/emulated/test_layout_engines.py::test_keys_of_192_and_values_of_128",
        until="vllm-ascend views its output by the head size of values",
    ),
    Patch(
        name="projection with values of another size",
        target="vllm_ascend.ops.linear.AscendQKVParallelLinear.__init__",
        why="It takes v_head_size and gives values as many rows as keys.",
        guard="the constructor takes head_size and v_head_size, and its output sizes are those of "
        "queries, keys and values (patches/value_head_size.py)",
        test="tests/emulated/test_layout_engines.py::test_keys_of_192_and_values_of_128",
        until="vllm-ascend's projection counts values by v_head_size",
    ),
    Patch(
        name="number of keys that a sparse layer chooses",
        target="vllm_ascend.device.device_op.DeviceOperator.indexer_select_post_process",
        why="The indexer chooses 2048 keys whatever the model's index_topk is. Layers with 2048 "
        "still take vllm-ascend's way.",
        guard="the method takes the arguments that it took (patches/sparse_counts.py)",
        test="tests/emulated/test_sparse_models.py::test_tokens_are_those_of_the_chosen_keys",
        until="vllm-ascend passes the indexer's topk_tokens as sparse_count",
        apply=_install("patches.sparse_counts"),
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
        name="experts of a draft alone",
        target="vllm.distributed.parallel_state._EP (after the other groups are made), and "
        "moe_comm_type of the forward context while the draft's experts run",
        why="Both are made and chosen for a target with experts only: layers of a draft with "
        "experts stop in their constructor, and have no method of dealing out tokens.",
        guard="vLLM made no group and keeps it in that global (patches/expert_groups.py)",
        test="tests/emulated/test_drafting_ranks.py"
        "::test_a_draft_with_experts_serves_a_target_without_on_several_ranks",
        until="vLLM and vllm-ascend look at the draft's configuration too",
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
        guard="the functions have the parameters that kv_cache/engine_core.py names; each hands "
        "over to the original for layers that are not planned",
        test="tests/emulated/test_layout_groups.py",
        until="vLLM groups layers of unlike pages, or the grouping is a hook of the platform",
    ),
    Patch(
        name="new blocks beside states",
        target="KVCacheCoordinator.allocate_new_blocks",
        why="Rejected rows of a proposal's first pass are keys that were never written. In a block "
        "that held states in float32 they read as NaN, and the draft's tokens are wrong. vLLM has "
        "new blocks zeroed of dense layers alone, vllm-ascend for eagle3 alone.",
        guard="the method has the parameters that patches/new_blocks.py names; it does what it "
        "did, and nothing more where no layer keeps states",
        test="tests/emulated/test_new_blocks.py",
        until="vLLM names new blocks of all attention layers, and vllm-ascend zeroes them for all "
        "methods",
    ),
    Patch(
        name="prefix hits of unlike groups",
        target="AscendHybridKVCacheCoordinator.find_longest_cache_hit",
        why="Groups that keep all tokens and differ in block size or in the spec of their first "
        "layer are looked up one after another; only the first is cut to the length that all "
        "agree on, the others are handed blocks beyond the hit.",
        guard="the method takes block_hashes and max_cache_hit_length (patches/prefix_hits.py)",
        test="tests/emulated/test_layout_block_sizes.py"
        "::test_no_group_is_handed_blocks_beyond_the_hit",
        until="vllm-ascend cuts every group that keeps all tokens to the hit",
    ),
    Patch(
        name="hits beside states of a draft",
        target="resolve_kv_cache_block_sizes of vllm.v1.engine.core",
        why="A draft's states are one for a request, in blocks as long as the longest context; the "
        "scheduler looks for hits in common multiples of all blocks, and for a state at their end. "
        "So there would be no hit. Here it is told that such a group has no say, by a spec with a "
        "manager of its own.",
        guard="the function takes kv_cache_config and vllm_config; nothing changes where no layer "
        "keeps states in mode none beside prefix caching (patches/draft_state_blocks.py)",
        test="tests/emulated/test_draft_state_blocks.py",
        until="vLLM lets a group have no say in prefix hits",
    ),
    Patch(
        name="blocks beside states",
        target="vllm HybridAttentionMambaModelConfig.verify_and_update_config (vllm-ascend's)",
        why="It asserts that attention blocks can be made so large that their keys are as many "
        "bytes as a recurrent state, which its own caches need and planned ones do not. Models "
        "with other sizes are refused. And models that could keep states of all blocks are given "
        "that mode, in which its blocks of states are as long as the longest context: no hit.",
        guard="the method takes vllm_config; only that assertion is passed over, and only that "
        "mode is changed (patches/recurrent_blocks.py)",
        test="tests/emulated/test_hybrid_engines.py"
        "::test_states_that_vllm_ascend_cannot_align_are_served",
        until="vllm-ascend's caches need no equal sizes",
        apply=_install("patches.recurrent_blocks"),
    ),
    Patch(
        name="heads of two sizes",
        target="vllm Gemma4Config.verify_and_update_config; rotary_embedding._cos and _sin",
        why="For heads of two sizes vLLM asks for Triton's backend, which is not Ascend's. "
        "vllm-ascend fills rotary rows as wide as the largest head from the table of the first "
        "layer's, and ends in a RuntimeError; layers of this kind read no such rows.",
        guard="the class has that method alone; rows are dropped only where their width differs "
        "(patches/two_head_sizes.py)",
        test="tests/emulated/test_two_head_sizes.py",
        until="vllm-ascend keeps rotary rows for each head size, or serves Gemma 4",
        apply=_install("patches.two_head_sizes"),
    ),
    Patch(
        name="architecture of a draft model",
        target="vllm SpeculativeConfig.__post_init__",
        why="It makes an MTP head of every draft whose family has one (Qwen3-Next, Qwen3.5, "
        "DeepSeek-V3, Nemotron-H), also where the method asked for is draft_model: such a model "
        "cannot be a draft of its own.",
        guard="the method reads hf_config_override (patches/draft_architecture.py)",
        test="tests/emulated/test_recurrent_drafts.py",
        until="vLLM overrides a draft's architecture for the method mtp only",
    ),
    Patch(
        name="refusals before the start",
        target="vllm EngineArgs.create_engine_config",
        why="What cannot be served is refused in the process that the user started, by the checks "
        "of mkv-ascend check; the platform is asked only when vLLM has made its configuration, "
        "and what that raises is shown behind a traceback.",
        guard="EngineArgs is a dataclass with a field model (early_checks/front_check.py)",
        test="tests/emulated/test_front_check.py",
        until="vLLM hands the arguments to the platform, and prints a refusal alone",
    ),
    Patch(
        name="windows of short convolutions",
        target="vllm ShortConv: __init__, get_state_shape, forward_cuda, and "
        "causal_conv1d_update of its module",
        why="The window holds as many inputs as the filter needs and cannot be taken back: after a "
        "verification rejected draft tokens stay in it.",
        guard="the methods are there, forward_cuda takes hidden_states and output "
        "(patches/short_convolution.py)",
        test="tests/emulated/test_mamba_models.py::test_states_are_taken_back_to_what_was_accepted",
        until="vLLM's short convolutions serve speculation (after 0.23: pull request 50272)",
        apply=_install("patches.short_convolution"),
    ),
    Patch(
        name="latent attention that rotates nothing",
        target="vllm_ascend.ops.rotary_embedding (tables recorded after the target is loaded)",
        why="MLA always rotates, by tables that rotary modules record. Kimi-Linear has no such "
        "module: a TypeError in its first step. Tables of cosine 1 and sine 0 are recorded.",
        guard="only where there is MLA and no table (patches/identity_rope.py)",
        test="tests/emulated/test_kimi_linear.py",
        until="vllm-ascend's MLA looks whether there is a rotary module",
    ),
    Patch(
        name="groups of the target's states",
        target="vllm.v1.worker.mamba_utils.get_mamba_groups",
        why="With prefix caching the target's states move from block to block. All groups of "
        "states are taken for the target's, and an assertion fails where a draft has states too.",
        guard="the function takes kv_cache_config; its answer is vLLM's where all states move "
        "(patches/target_state_groups.py)",
        test="tests/emulated/test_hits_of_recurrent_drafts.py"
        "::test_states_of_the_target_are_hit_and_those_of_the_draft_rebuilt",
        until="vLLM tells groups of states of a draft from those of the target",
        apply=_install("patches.target_state_groups"),
    ),
    Patch(
        name="rows of gated delta nets",
        target="AscendGDNAttentionMetadataBuilder.build and "
        "._fold_spec_sized_prefill_chunks_into_spec, QwenGatedDeltaNetAttention._forward_core",
        why="After a verification of drafts a state stands in the column of the token that was "
        "accepted last. Rows with fewer drafts than K, or none, and chunks of prompts of K + 1 "
        "tokens, go on from another column: wrong tokens.",
        guard="the three methods have their parameters (patches/gdn_rows.py)",
        test="tests/emulated/test_gated_delta_nets.py",
        until="vllm-ascend looks columns up by row, and keeps chunks of prompts apart",
        apply=_install("patches.gdn_rows"),
    ),
    Patch(
        name="hidden states of any target",
        target="vllm_ascend.worker.model_runner_v1.get_model (while the target is loaded), and the "
        "classes of the target and its decoder (of these instances)",
        why="A head of eagle3 or dflash takes hidden states of the target's layers. Classes that "
        "hand out none are refused: Gemma3, Qwen3-Next, Granite-4, LFM2 and many others.",
        guard="the module has that global (guards.replaced); the decoder holds what make_layers "
        "returns; only classes without SupportsEagle3 (patches/auxiliary_states.py)",
        test="tests/emulated/test_auxiliary_states.py",
        until="vLLM gathers hidden states outside of the models' classes",
    ),
    Patch(
        name="dense layers beside MLA",
        target="vllm Attention.get_kv_cache_spec",
        why="A dense layer with a sliding window refuses when the model has MLA, and is asked "
        "about the target's configuration also where it is the draft's.",
        guard="the method takes self and vllm_config (patches/dense_specs.py)",
        test="tests/emulated/test_layout_engines.py",
        until="vLLM asks the layer, or hands over the draft's configuration",
    ),
)


def apply_in_worker() -> None:
    """Apply every patch that a worker process needs before a model is built. Idempotent."""
    for patch in PATCHES:
        if patch.apply is not None:
            patch.apply()

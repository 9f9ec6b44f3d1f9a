# SPDX-License-Identifier: Apache-2.0
"""What platform and runner do beside vllm-ascend's own, without an engine."""

import dataclasses
import functools
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
import vllm_ascend.ops  # noqa: F401 - first of vllm-ascend: its modules import each other in circles
from transformers import PretrainedConfig
from vllm.model_executor.layers.attention import MLAAttention
from vllm.v1 import kv_cache_spec_registry
from vllm.v1.attention.backend import AttentionType
from vllm.v1.core.single_type_kv_cache_manager import FullAttentionManager
from vllm.v1.kv_cache_interface import FullAttentionSpec
from vllm_ascend.platform import NPUPlatform

from mkv_ascend.adapters.common import runner as shared_runner
from mkv_ascend.adapters.common.attention import draft_window, layers
from mkv_ascend.adapters.common.early_checks import early_check, front_check
from mkv_ascend.adapters.common.patches import (
    draft_architecture,
    expert_groups,
)
from mkv_ascend.adapters.common.platform import STOCK_WORKER, MkvPlatform
from mkv_ascend.adapters.common.runner import MkvModelRunner
from mkv_ascend.adapters.contract import WORKER
from mkv_ascend.attention.selection import SelectionError
from mkv_ascend.config import ConfigError
from tests.support import hosts

engine_core = hosts.module("kv_cache.engine_core")

XLITE = "vllm_ascend.xlite.xlite_worker.XliteWorker"
ATTENTION = SimpleNamespace(
    architectures=["LlamaForCausalLM"], is_hybrid=False, is_attention_free=False
)
OPTIONS = {"mkv_ascend": {"attention": {"draft": "flash_attention_3"}}}


@pytest.fixture
def configure(monkeypatch):
    """Runs our part of ``check_and_update_config``; vllm-ascend's sets the worker given."""

    def run(worker, additional_config=None, model=ATTENTION, asked="FLASH_ATTN", v2=False):
        parallel = SimpleNamespace(worker_cls="auto")
        config = SimpleNamespace(
            additional_config=additional_config,
            parallel_config=parallel,
            model_config=model,
            speculative_config=None,
            use_v2_model_runner=v2,
            attention_config=SimpleNamespace(backend=SimpleNamespace(name=asked)),
        )

        def stock(cls, config):
            config.parallel_config.worker_cls = worker
            config.attention_config.backend = None

        monkeypatch.setattr(NPUPlatform, "check_and_update_config", classmethod(stock))
        monkeypatch.setattr(early_check, "check_compressed", lambda config, rules: None)
        monkeypatch.setattr(early_check, "check_models", lambda config, rules: None)
        check = "mkv_ascend.adapters.common.early_checks.kv_connectors.check_connectors"
        monkeypatch.setattr(check, lambda config: None)
        MkvPlatform.check_and_update_config(config)
        kept = config.attention_config.backend
        assert (None if kept is None else kept.name) == (
            "FLASH_ATTN" if asked == "FLASH_ATTN" else None
        )
        return parallel.worker_cls

    return run


def test_vllm_ascends_worker_becomes_ours_and_stays_ours(configure):
    assert configure(STOCK_WORKER) == WORKER
    assert configure(WORKER, OPTIONS) == WORKER
    # vLLM itself asks for backends of other devices for some models.
    assert configure(WORKER, asked="TRITON_ATTN") == WORKER


@pytest.mark.parametrize("first", ["vllm", "vllm_ascend"])
def test_the_platform_is_there_whichever_module_is_imported_first(first):
    """vLLM loads the platform while its own modules are not complete yet."""
    script = f"import {first}; from vllm.platforms import current_platform as c; print(type(c))"
    finished = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert finished.stdout.split()[-1] == f"'{MkvPlatform.__module__}.MkvPlatform'>", (
        finished.stderr
    )


def test_another_worker_is_left_alone_without_options(configure):
    assert configure(XLITE) == XLITE


def test_another_worker_is_refused_with_options_that_nothing_would_honour(configure):
    with pytest.raises(ValueError, match="mkv_ascend") as refusal:
        configure(XLITE, OPTIONS)
    assert XLITE in str(refusal.value)


@hosts.only_on("vllm_ascend_0_30", "0.23.0 itself falls back to model runner V1")
def test_each_model_runner_has_a_worker_of_ours(configure):
    assert configure(STOCK_WORKER) == WORKER
    assert configure(STOCK_WORKER, v2=True) == hosts.ADAPTER.WORKER_V2


def test_options_are_checked_before_anything_else(configure):
    with pytest.raises(ConfigError, match=r"mkv_ascend\.attention\.targets"):
        configure(STOCK_WORKER, {"mkv_ascend": {"attention": {"targets": "mla"}}})


class HostLengths(shared_runner.AscendAttentionMetadataBuilder):
    pass


class DeviceLengths:
    pass


@pytest.mark.parametrize(
    ("builders", "expected"),
    [
        ([DeviceLengths, HostLengths], True),
        ([DeviceLengths, DeviceLengths], False),
        ([HostLengths], True),
    ],
    ids=["the draft's alone", "none", "the target's alone"],
)
def test_host_lengths_are_kept_right_when_any_layer_reads_them(monkeypatch, builders, expected):
    def layer(builder):
        backend = SimpleNamespace(get_builder_cls=lambda: builder)
        return SimpleNamespace(get_attn_backend=lambda: backend)

    chosen = {str(index): layer(builder) for index, builder in enumerate(builders)}
    monkeypatch.setattr(shared_runner.NPUModelRunner, "load_model", lambda self: None)
    monkeypatch.setattr(layers, "check_options", lambda config: None)
    monkeypatch.setattr(layers, "chosen_layers", lambda config: chosen)
    monkeypatch.setattr(shared_runner, "get_layers_from_vllm_config", lambda config, kind: {})
    monkeypatch.setattr(MkvModelRunner, "draft_layers", lambda self: {})
    monkeypatch.setattr(shared_runner, "HOST", dataclasses.replace(shared_runner.HOST, loaded=None))
    monkeypatch.setattr(shared_runner.recurrent_refusals, "refuse", lambda config, chosen: None)
    runner = object.__new__(MkvModelRunner)
    runner.vllm_config = SimpleNamespace(speculative_config=None)
    runner.device, runner.use_compress = None, False
    runner.use_aux_hidden_state_outputs, runner.speculative_config = False, None
    runner._needs_seq_lens_cpu_sync = not expected
    MkvModelRunner.load_model(runner)
    assert runner._needs_seq_lens_cpu_sync is expected


def dense_model(**fields):
    return SimpleNamespace(
        model="a model",
        architectures=["LlamaForCausalLM"],
        dtype="torch.bfloat16",
        quantization=None,
        hf_config=PretrainedConfig(),
        hf_text_config=PretrainedConfig(),
        max_model_len=1024,
        attention_chunk_size=None,
        is_attention_free=False,
        is_hybrid=False,
        multimodal_config=None,
        use_mla=False,
        get_head_size=lambda: 64,
        **fields,
    )


def configuration(
    attention, draft=None, kv_cache=None, method="draft_model", ranks=(1, 1), stages=1, tokens=3
):
    speculative = SimpleNamespace(
        method=method,
        attention_backend=None,
        use_eagle=lambda: method == "eagle",
        uses_draft_model=lambda: method == "draft_model",
        num_speculative_tokens=tokens,
        disable_padded_drafter_batch=False,
        parallel_drafting=False,
        draft_parallel_config=SimpleNamespace(tensor_parallel_size=ranks[1]),
        draft_model_config=draft,
        target_model_config=None,
        max_model_len=None,
        model="another model",
    )
    return SimpleNamespace(
        additional_config={"mkv_ascend": {"attention": attention, "kv_cache": kv_cache or {}}},
        attention_config=SimpleNamespace(backend=None),
        compilation_config=SimpleNamespace(cudagraph_mode=None),
        model_config=dense_model(),
        speculative_config=speculative,
        parallel_config=SimpleNamespace(
            pipeline_parallel_size=stages,
            tensor_parallel_size=ranks[0],
            data_parallel_size=1,
            prefill_context_parallel_size=1,
            decode_context_parallel_size=1,
            use_sequence_parallel_moe=False,
            distributed_executor_backend="uni",
        ),
        cache_config=SimpleNamespace(
            kv_offloading_size=None, enable_prefix_caching=True, mamba_cache_mode="none"
        ),
        scheduler_config=SimpleNamespace(
            max_num_batched_tokens=8192,
            max_num_seqs=256,
            disable_hybrid_kv_cache_manager=None,
        ),
        kv_transfer_config=None,
    )


@pytest.mark.parametrize("role", ["target", "draft"])
def test_a_backend_of_another_kind_is_refused_before_any_worker_starts(role):
    config = configuration({role: "mla"}, draft=dense_model())
    with pytest.raises(SelectionError, match=f"every attention layer of the {role}") as refusal:
        early_check.check_models(config)
    assert "fused_infer_attention" in str(refusal.value)


def test_patterns_are_left_to_the_layers_whose_names_they_need():
    # Matches the words "every attention layer of the target", but may match no layer of it.
    early_check.check_models(configuration({"layers": {".*target.*": "mla"}}, dense_model()))


@pytest.mark.parametrize(
    ("draft", "method"),
    [(None, "draft_model"), (dense_model(), "ngram")],
    ids=["no draft", "ngram"],
)
def test_a_dtype_for_the_cache_of_no_draft_is_refused(draft, method):
    config = configuration({}, draft, {"draft_dtype": "float16"}, method)
    if draft is None:
        config.speculative_config = None
    with pytest.raises(SelectionError, match="there is no draft with a KV cache"):
        early_check.check_models(config)


def test_the_drafts_cache_dtype_must_be_one_that_its_backend_takes():
    early_check.check_models(configuration({}, dense_model(), {"draft_dtype": "float16"}))
    draft = dense_model(index_topk=None)
    draft.use_mla = True
    draft.hf_text_config = PretrainedConfig(kv_lora_rank=512, qk_rope_head_dim=64)
    early_check.check_models(configuration({}, draft, {"draft_dtype": "bfloat16"}))
    with pytest.raises(SelectionError, match="the model's dtype, bfloat16, not float16"):
        early_check.check_models(configuration({}, draft, {"draft_dtype": "float16"}))


def test_a_window_of_the_draft_is_judged_where_a_program_calls_vllm():
    config = configuration({}, dense_model())
    options = config.additional_config["mkv_ascend"]
    options["drafting"] = {"window": 512}
    early_check.check_models(config)
    options["attention"] = {"draft": "flash_attention_3"}
    with pytest.raises(SelectionError, match="sliding_window"):
        early_check.check_models(config)
    # As long as the longest request: the draft attends to all tokens.
    options["drafting"] = {"window": 1024}
    early_check.check_models(config)
    options.update(drafting={"window": 512}, attention={})
    config.scheduler_config.disable_hybrid_kv_cache_manager = True
    with pytest.raises(SelectionError, match="keeps the blocks behind a window"):
        early_check.check_models(config)
    config.speculative_config = None
    with pytest.raises(SelectionError, match="there is no draft with a KV cache"):
        early_check.check_models(config)


def test_a_window_that_would_do_nothing_is_refused_when_the_models_are_there():
    config = configuration({}, dense_model())
    options = config.additional_config["mkv_ascend"]
    options["drafting"] = {"window": 512}
    draft_window.check_used(config, ["a layer"])
    with pytest.raises(SelectionError, match="no layer of the draft has a KV cache"):
        draft_window.check_used(config, [])
    config.scheduler_config.disable_hybrid_kv_cache_manager = True
    with pytest.raises(SelectionError, match="the scheduler gives no blocks back"):
        draft_window.check_used(config, ["a layer"])
    options["drafting"] = {"window": 1024}
    draft_window.check_used(config, ["a layer"])


def test_a_window_is_refused_by_layers_that_cannot_have_one():
    config = configuration({}, dense_model())
    config.additional_config["mkv_ascend"]["drafting"] = {"window": 512}
    arguments = {
        "prefix": "a.layer",
        "attn_type": AttentionType.DECODER,
        "cache_config": SimpleNamespace(sliding_window=None),
        "per_layer_sliding_window": 600,
    }
    draft_window.set_window(object(), arguments, False, config)
    assert arguments["per_layer_sliding_window"] == 512
    with pytest.raises(SelectionError, match=r"a\.layer: .* no operator for MLA"):
        draft_window.set_window(MLAAttention.__new__(MLAAttention), arguments, False, config)
    with pytest.raises(SelectionError, match="chooses by itself what it attends to"):
        draft_window.set_window(object(), arguments, True, config)
    arguments["attn_type"] = AttentionType.ENCODER_ONLY
    with pytest.raises(SelectionError, match="chooses by itself what it attends to"):
        draft_window.set_window(object(), arguments, False, config)


def test_sequence_parallelism_is_refused_where_only_the_draft_has_experts(monkeypatch):
    draft = dense_model()
    draft.hf_text_config = PretrainedConfig(num_experts=8)
    early_check.check_models(configuration({}, draft, ranks=(2, 2)))
    monkeypatch.setattr("vllm_ascend.utils.enable_sp", lambda config: True)
    with pytest.raises(SelectionError, match=r"enable_flashcomm1.* a model has 8 experts"):
        early_check.check_models(configuration({}, draft, ranks=(2, 2)))
    early_check.check_models(configuration({}, dense_model(), ranks=(2, 2)))


def test_experts_of_a_draft_are_shared_by_the_ranks_of_a_pipeline_stage():
    """Two data-parallel copies of two stages of two ranks: ranks 0 and 1 are the first stage of
    the first copy, 2 and 3 its second, 4 and 5 the first stage of the other copy."""
    parallel = SimpleNamespace(
        data_parallel_size=2,
        pipeline_parallel_size=2,
        prefill_context_parallel_size=1,
        tensor_parallel_size=2,
    )
    assert expert_groups.ranks_of_groups(parallel, 8) == [[0, 1, 4, 5], [2, 3, 6, 7]]


def test_deepseek_v4_is_refused_where_the_host_cannot_serve_it():
    """In programs that call ``vllm.LLM``, too, which never run ``mkv-ascend check``."""
    rules = hosts.ADAPTER.RULES
    cannot = dataclasses.replace(rules, compressed_in_one_process=False)
    config = configuration({}, dense_model())
    early_check.check_compressed(config, cannot)
    config.model_config.hf_text_config = PretrainedConfig(compress_ratios=[4, 128])
    with pytest.raises(SelectionError, match="executor-backend mp"):
        early_check.check_compressed(config, cannot)
    config.parallel_config.distributed_executor_backend = "mp"
    early_check.check_compressed(config, cannot)
    can = dataclasses.replace(rules, compressed_in_one_process=True)
    early_check.check_compressed(configuration({}, dense_model()), can)


def test_a_draft_model_on_fewer_ranks_than_its_target_is_refused():
    """A head on hidden states may be whole on every rank, in a group of its own."""
    early_check.check_models(configuration({}, dense_model(), method="eagle", ranks=(2, 1)))
    early_check.check_models(configuration({}, dense_model(), ranks=(2, 2)))
    with pytest.raises(SelectionError, match="draft_tensor_parallel_size is 1 and --tensor"):
        early_check.check_models(configuration({}, dense_model(), ranks=(2, 1)))


def test_a_head_on_states_of_a_share_of_the_tokens_is_refused_over_stages(monkeypatch):
    for method in ("ngram", "draft_model", "eagle", "eagle3"):
        early_check.check_models(configuration({}, dense_model(), method=method, stages=2))
    shares = configuration({}, dense_model(), method="eagle3", stages=2, ranks=(2, 2))
    monkeypatch.setattr("vllm_ascend.utils.enable_sp", lambda config: True)
    with pytest.raises(SelectionError, match="--pipeline-parallel-size is 2 and there is a draft"):
        early_check.check_models(shares)
    shares.kv_transfer_config = SimpleNamespace(kv_role="kv_producer")
    early_check.check_models(shares)


def test_a_program_is_told_what_the_command_is_told():
    """One list for both: more tokens to verify than attention takes, besides."""
    early_check.check_models(configuration({}, dense_model(), tokens=15))
    with pytest.raises(SelectionError, match="for 2 reasons") as refusal:
        early_check.check_models(configuration({}, dense_model(), ranks=(2, 1), tokens=16))
    for code in ("[tokens-per-step]", "[draft-ranks]"):
        assert code in str(refusal.value)


def noted(monkeypatch, patches):
    """Names of those of ``patches`` that are applied from now on, which changes nothing."""
    names = []
    for patch in patches:
        monkeypatch.setattr(patch, "apply", functools.partial(names.append, patch.record.name))
    return names


def test_the_front_process_is_given_our_patches(monkeypatch):
    """vLLM's command calls the method before it reads its arguments."""
    monkeypatch.setattr(NPUPlatform, "pre_register_and_update", classmethod(lambda *_: None))
    patches = [
        draft_architecture.keep_the_architecture,
        front_check.check_first,
        *hosts.ADAPTER.patches_of_the_front(),
    ]
    applied = noted(monkeypatch, patches)
    MkvPlatform.pre_register_and_update()
    assert applied == [patch.record.name for patch in patches]


def test_an_engine_core_of_ours_is_given_our_patches(monkeypatch):
    """vLLM calls the method before it groups layers, whichever worker runs."""
    config = SimpleNamespace(parallel_config=SimpleNamespace(worker_cls=WORKER))
    config.use_v2_model_runner = False
    config.speculative_config = None
    patches = list(hosts.ADAPTER.patches_of_the_engine_core(config))
    assert engine_core.our_groups in patches
    applied = noted(monkeypatch, patches)
    MkvPlatform.register_custom_kv_cache_specs(config)
    assert applied == [patch.record.name for patch in patches]
    config.parallel_config.worker_cls = XLITE
    MkvPlatform.register_custom_kv_cache_specs(config)
    assert len(applied) == len(patches)


def test_specs_are_registered_without_a_configuration_and_without_our_grouping(monkeypatch):
    """As when vLLM looks a manager up outside an engine, for instance in a unit test."""
    monkeypatch.setattr(kv_cache_spec_registry, "_REGISTRY_KVCACHESPEC_LIST", {})
    applied = functools.partial(pytest.fail, "no engine core is here")
    monkeypatch.setattr(engine_core.our_groups, "apply", applied)
    spec = FullAttentionSpec(block_size=128, num_kv_heads=1, head_size=64, dtype=torch.float16)
    manager = kv_cache_spec_registry.KVCacheSpecRegistry.get_manager_class(spec)
    assert manager is FullAttentionManager


@hosts.only_on("vllm_ascend_0_23", "vllm-ascend 0.30.0rc2 knows it")
def test_a_head_that_vllm_ascend_has_forgotten_is_remembered():
    """Hunyuan 3's, which vLLM knows."""
    from vllm.config import SpeculativeConfig

    from mkv_ascend.adapters.vllm_ascend_0_23.patches import forgotten_heads

    forgotten_heads.remember_heads.apply()
    target = PretrainedConfig(num_nextn_predict_layers=2, architectures=["HYV3ForCausalLM"])
    ((target.model_type, (model_type, _)),) = forgotten_heads.FORGOTTEN.items()
    head = SpeculativeConfig.hf_config_override(target)
    assert (head.model_type, head.n_predict) == (model_type, 2)
    assert head.architectures == ["HYV3MTPModel"]

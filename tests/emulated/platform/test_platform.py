# SPDX-License-Identifier: Apache-2.0
"""What platform and runner do beside vllm-ascend's own, without an engine."""

import copy
import dataclasses
import functools
import importlib.metadata
import importlib.util
import pickle
import subprocess
import sys
from multiprocessing.reduction import ForkingPickler
from types import SimpleNamespace

import pytest
import torch
import vllm_ascend.ops  # noqa: F401 - first of vllm-ascend: its modules import each other in circles
from transformers import PretrainedConfig
from vllm.config import VllmConfig
from vllm.v1 import kv_cache_spec_registry
from vllm.v1.core.single_type_kv_cache_manager import FullAttentionManager
from vllm.v1.kv_cache_interface import FullAttentionSpec
from vllm_ascend.platform import NPUPlatform

from mkv_ascend.adapters import patching
from mkv_ascend.adapters.common import runner as shared_runner
from mkv_ascend.adapters.common.attention import layers
from mkv_ascend.adapters.common.judge import early_check, front_check
from mkv_ascend.adapters.common.patches import draft_architecture, experts
from mkv_ascend.adapters.common.platform import STOCK_WORKER, MkvPlatform
from mkv_ascend.adapters.common.runner import MkvModelRunner
from mkv_ascend.adapters.contract import WORKER
from mkv_ascend.rules.refusal import RefusedError
from tests.support import hosts

engine_core = hosts.module("kv_cache.engine_core")

XLITE = "vllm_ascend.xlite.xlite_worker.XliteWorker"
ATTENTION = SimpleNamespace(
    model="a model",
    architectures=["LlamaForCausalLM"],
    dtype="torch.bfloat16",
    is_hybrid=False,
    is_attention_free=False,
)
ASKED_FOR = SimpleNamespace(user_specified_block_size=True)
OPTIONS = {"mkv_ascend": {"attention": {"draft": "flash_attention_3"}}}


@pytest.fixture
def configure(monkeypatch):
    """Runs our part of ``check_and_update_config``; vllm-ascend's sets the worker given."""

    def run(
        worker,
        additional_config=None,
        model=ATTENTION,
        asked="FLASH_ATTN",
        v2=False,
        cache=ASKED_FOR,
        drafts=None,
    ):
        parallel = SimpleNamespace(worker_cls="auto", pipeline_parallel_size=1)
        config = SimpleNamespace(
            additional_config=additional_config,
            parallel_config=parallel,
            model_config=model,
            cache_config=cache,
            speculative_config=drafts,
            use_v2_model_runner=v2,
            attention_config=SimpleNamespace(backend=SimpleNamespace(name=asked)),
        )

        def stock(cls, config):
            config.parallel_config.worker_cls = worker
            config.attention_config.backend = None

        monkeypatch.setattr(NPUPlatform, "check_and_update_config", classmethod(stock))
        monkeypatch.setattr(early_check, "check", lambda config, backend: None)
        MkvPlatform.check_and_update_config(config)
        kept = config.attention_config.backend
        assert (None if kept is None else kept.name) == (
            "FLASH_ATTN" if asked == "FLASH_ATTN" else None
        )
        return parallel.worker_cls

    return run


@pytest.mark.core
def test_vllm_ascends_worker_becomes_ours_and_stays_ours(configure):
    assert configure(STOCK_WORKER) == WORKER
    assert configure(WORKER, OPTIONS) == WORKER
    # vLLM itself asks for backends of other devices for some models.
    assert configure(WORKER, asked="TRITON_ATTN") == WORKER


@pytest.mark.core
@pytest.mark.parametrize(
    ("size", "asked_for", "is_hybrid", "taken"),
    [
        (16, False, False, 128),
        (16, True, False, 16),
        (16, False, True, 16),
        (32, False, False, 32),
        (256, True, False, 256),
    ],
)
def test_blocks_of_kernels_where_nobody_asks_for_any(configure, size, asked_for, is_hybrid, taken):
    model = SimpleNamespace(**{**vars(ATTENTION), "is_hybrid": is_hybrid})
    cache = SimpleNamespace(
        block_size=size,
        user_specified_block_size=asked_for,
        DEFAULT_BLOCK_SIZE=16,
        # What an early check reads beside states.
        mamba_cache_mode="none",
    )
    configure(STOCK_WORKER, model=model, cache=cache)
    assert cache.block_size == taken


@pytest.mark.parametrize("first", ["vllm", "vllm_ascend"])
def test_the_platform_is_there_whichever_module_is_imported_first(first):
    """vLLM loads the platform while its own modules are not complete yet."""
    script = f"import {first}; from vllm.platforms import current_platform as c; print(type(c))"
    finished = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert finished.stdout.split()[-1] == f"'{MkvPlatform.__module__}.MkvPlatform'>", (
        finished.stderr
    )


def test_an_engine_core_imports_no_attention():
    """Its process has no worker's modules, and vllm-ascend's attention goes in a circle there."""
    script = """
import sys
from types import SimpleNamespace
import vllm.platforms
assert vllm.platforms.current_platform
from mkv_ascend.adapters.installed import adapter
config = SimpleNamespace(speculative_config=None, use_v2_model_runner=False)
assert list(adapter().patches_of_the_engine_core(config))
print([name for name in sys.modules if name.startswith("vllm_ascend.attention")])
"""
    finished = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert finished.stdout.split()[-1] == "[]", finished.stdout + finished.stderr


def test_another_worker_is_left_alone_without_options(configure):
    assert configure(XLITE) == XLITE


@pytest.mark.core
def test_another_worker_is_refused_with_options_that_nothing_would_honour(configure):
    with pytest.raises(ValueError, match="mkv_ascend") as refusal:
        configure(XLITE, OPTIONS)
    assert XLITE in str(refusal.value)


@hosts.only_on("vllm_ascend_0_30", "0.23.0 itself falls back to model runner V1")
def test_both_model_runners_have_our_worker(configure):
    assert configure(STOCK_WORKER) == WORKER
    assert configure(STOCK_WORKER, v2=True) == WORKER


@pytest.mark.parametrize(
    ("drafts", "says"), [(None, 0), (SimpleNamespace(method="ngram", draft_model_config=None), 1)]
)
def test_processors_of_installed_packages_are_told_beside_drafts(
    configure, monkeypatch, drafts, says
):
    there = [importlib.metadata.EntryPoint("shout", "a.b:Shout", early_check.PROCESSORS)]
    monkeypatch.setattr(early_check, "entry_points", lambda group: there)
    told = []
    monkeypatch.setattr(early_check.logger, "warning", lambda *words: told.append(words))
    configure(STOCK_WORKER, drafts=drafts)
    assert [words[1] for words in told] == ["shout"] * says


def test_options_are_checked_before_anything_else(configure):
    with pytest.raises(RefusedError, match=r"mkv_ascend\.attention\.targets"):
        configure(STOCK_WORKER, {"mkv_ascend": {"attention": {"targets": "mla"}}})


class HostLengths(shared_runner.AscendAttentionMetadataBuilder):
    pass


class DeviceLengths:
    pass


@pytest.mark.core
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
    runner = object.__new__(MkvModelRunner)
    runner.vllm_config = SimpleNamespace(speculative_config=None)
    runner.device, runner.use_compress = None, False
    runner.model = torch.nn.Module()
    runner.use_aux_hidden_state_outputs, runner.speculative_config = False, None
    runner._needs_seq_lens_cpu_sync = not expected
    MkvModelRunner.load_model(runner)
    assert runner._needs_seq_lens_cpu_sync is expected


def test_experts_of_a_draft_are_shared_by_the_ranks_of_a_pipeline_stage():
    """Two data-parallel copies of two stages of two ranks: ranks 0 and 1 are the first stage of
    the first copy, 2 and 3 its second, 4 and 5 the first stage of the other copy."""
    parallel = SimpleNamespace(
        data_parallel_size=2,
        pipeline_parallel_size=2,
        prefill_context_parallel_size=1,
        tensor_parallel_size=2,
    )
    assert experts.ranks_of_groups(parallel, 8) == [[0, 1, 4, 5], [2, 3, 6, 7]]


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
        front_check.say_refusals_alone,
        *hosts.ADAPTER.patches_of_the_front(),
    ]
    applied = noted(monkeypatch, patches)
    MkvPlatform.pre_register_and_update()
    assert applied == [patch.record.name for patch in patches]


def says_one():
    return 1


def test_a_configuration_with_a_function_that_we_wrap_reaches_another_process(monkeypatch):
    """Before there is a client of an engine, as with several API servers and with --headless."""
    monkeypatch.setattr(ForkingPickler, "_extra_reducers", {})
    monkeypatch.setattr(NPUPlatform, "pre_register_and_update", classmethod(lambda *_: None))
    patches = [
        draft_architecture.keep_the_architecture,
        front_check.say_refusals_alone,
        *hosts.ADAPTER.patches_of_the_front(),
    ]
    noted(monkeypatch, patches)
    MkvPlatform.pre_register_and_update()
    owner = SimpleNamespace(says_one=says_one)
    patching.wrap(owner, "says_one", lambda original: original() + 1)
    config = object.__new__(VllmConfig)
    vars(config)["function"] = owner.says_one
    with pytest.raises(pickle.PicklingError):
        pickle.dumps(config)
    sent = ForkingPickler.dumps(config)
    assert vars(pickle.loads(sent))["function"]() == 2


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


def as_vllm_itself_says(config):
    """What the method says that vllm-ascend replaces: of a second copy of vLLM's module."""
    spec = importlib.util.find_spec("vllm.config.speculative")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.SpeculativeConfig.hf_config_override(copy.deepcopy(config))


@pytest.mark.core
@hosts.only_on("vllm_ascend_0_23", "vllm-ascend 0.30.0rc2 knows them")
@pytest.mark.parametrize(
    ("model_type", "architecture"),
    [
        ("hy_v3", "HYV3ForCausalLM"),
        ("mimo_v2_flash", "MiMoV2FlashForCausalLM"),
        # As transformers after 5.5.4 reads them.
        ("gemma4_assistant", "Gemma4AssistantForCausalLM"),
        ("gemma4_unified_assistant", "Gemma4UnifiedAssistantForCausalLM"),
    ],
)
def test_a_head_that_vllm_ascend_has_forgotten_is_remembered(model_type, architecture):
    from vllm.config import SpeculativeConfig

    from mkv_ascend.adapters.vllm_ascend_0_23.patches import start_up

    start_up.remember_heads.apply()
    target = PretrainedConfig(
        num_hidden_layers=4,
        num_nextn_predict_layers=2,
        text_config=PretrainedConfig(num_kv_shared_layers=2),
        architectures=[architecture],
    )
    target.model_type = model_type
    expected = as_vllm_itself_says(target)
    assert expected.model_type.endswith("_mtp"), "vLLM has forgotten it, too"
    head = SpeculativeConfig.hf_config_override(target)
    assert head.to_dict() == expected.to_dict()

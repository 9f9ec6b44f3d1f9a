# SPDX-License-Identifier: Apache-2.0
"""What is refused in the process that the user started, from vLLM's configuration alone."""

import dataclasses
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import vllm_ascend.ops  # noqa: F401 - first of vllm-ascend: its modules import each other in circles
from transformers import PretrainedConfig
from vllm.config import CUDAGraphMode
from vllm.model_executor.layers.attention import MLAAttention
from vllm.v1.attention.backend import AttentionType

from mkv_ascend.adapters.common.attention import draft_window
from mkv_ascend.adapters.common.early_checks import early_check
from mkv_ascend.attention.selection import SelectionError
from tests.support import hosts
from tests.support.tiny_models import model_directory

pytestmark = pytest.mark.core


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
        logits_processors=None,
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
            enable_expert_parallel=False,
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


def test_logits_processors_are_refused_where_a_program_calls_vllm():
    config = configuration({}, dense_model())
    early_check.check_models(config)
    config.model_config.logits_processors = ["a_package.processors:Shout"]
    with pytest.raises(SelectionError, match="--logits-processors is given beside"):
        early_check.check_models(config)
    config.speculative_config = None
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


@pytest.mark.parametrize("role", ["target", "draft"])
def test_windows_are_judged_where_results_may_not_depend_on_the_batch(role, monkeypatch):
    """flash_attention_3 serves the other layers; nothing here serves these."""
    monkeypatch.setattr("vllm.envs.VLLM_BATCH_INVARIANT", True)
    config = configuration({}, dense_model())
    early_check.check_models(config)
    model = (
        config.model_config if role == "target" else config.speculative_config.draft_model_config
    )
    types = ["full_attention", "sliding_attention"]
    model.hf_text_config = PretrainedConfig(sliding_window=512, layer_types=types)
    with pytest.raises(SelectionError, match=f"every layer of the {role} with a window") as refusal:
        early_check.check_models(config)
    assert "it needs batch_invariant_ops" in str(refusal.value)


def test_a_layer_of_a_draft_that_each_rank_keeps_is_judged_by_its_name():
    target, draft = str(model_directory("llama_target")), str(model_directory("llama_draft"))
    asked = {"layers": {r"draft_model\.model\.layers\.0\..*": "flash_attention_3"}}
    config = configuration(asked, dense_model(), {"replicate_draft": True}, ranks=(2, 2))
    config.parallel_config.decode_context_parallel_size = 2
    config.model_config.model = target
    config.speculative_config.model = config.speculative_config.draft_model_config.model = draft
    with pytest.raises(
        SelectionError, match=r"\[draft-shares\]: kv_cache\.replicate_draft"
    ) as found:
        early_check.check_models(config, hosts.ADAPTER.RULES)
    assert r"attention.layers['draft_model\\.model" in str(found.value)
    assert "asks for flash_attention_3" in str(found.value)
    asked["layers"] = {r"draft_model\..*": "fused_infer_attention"}
    early_check.check_models(config, hosts.ADAPTER.RULES)


def test_sequence_parallelism_is_refused_where_only_the_draft_has_experts(monkeypatch):
    draft = dense_model()
    draft.hf_text_config = PretrainedConfig(num_experts=8)
    early_check.check_models(configuration({}, draft, ranks=(2, 2)))
    monkeypatch.setattr("vllm_ascend.utils.enable_sp", lambda config: True)
    with pytest.raises(SelectionError, match=r"enable_flashcomm1.* a model has 8 experts"):
        early_check.check_models(configuration({}, draft, ranks=(2, 2)))
    early_check.check_models(configuration({}, dense_model(), ranks=(2, 2)))


@pytest.mark.parametrize("role", ["target", "draft"])
def test_layers_that_attend_in_chunks_are_refused(role):
    asked = configuration({}, dense_model())
    model = asked.model_config if role == "target" else asked.speculative_config.draft_model_config
    model.model, model.hf_text_config = "llama-4", PretrainedConfig(attention_chunk_size=8192)
    with pytest.raises(SelectionError, match=r"llama-4 attend in chunks of 8192 .*no b.*choose"):
        early_check.check_models(asked)
    # vLLM has taken the number out where it has no meaning.
    model.hf_text_config = PretrainedConfig()
    early_check.check_models(asked)


SPLIT = {"finegrained_tp_config": {"lmhead_tensor_parallel_size": 2}}


@pytest.mark.parametrize(
    ("method", "recurrent", "refused"),
    [("draft_model", False, False), ("draft_model", True, True), ("dflash", False, True)],
)
def test_a_vocabulary_that_ranks_split_is_refused_to_states_and_dflash(method, recurrent, refused):
    draft = dense_model()
    if recurrent:
        draft.is_hybrid, draft.hf_text_config = True, PretrainedConfig(model_type="lfm2")
    asked = configuration({}, draft, method=method)
    early_check._check_draft(asked, hosts.ADAPTER.RULES)
    asked.additional_config |= SPLIT
    with (
        pytest.raises(SelectionError, match="lmhead_tensor_parallel_size")
        if refused
        else nullcontext()
    ):
        early_check._check_draft(asked, hosts.ADAPTER.RULES)


@pytest.mark.parametrize(
    ("speculative", "additional", "message"),
    [
        ({"draft_sample_method": "probabilistic"}, {}, "draft_sample_method"),
        ({"use_heterogeneous_vocab": True}, {}, "use_heterogeneous_vocab"),
        ({}, {"draft_window_size": 64}, r"drafting.*window"),
        ({}, {"dynamic_spec_config": {"method": "dflash"}}, "tokens_per_batch_size"),
    ],
)
def test_options_of_drafts_of_0_30_are_refused_where_ours_draft(speculative, additional, message):
    """What only proposals of vllm-ascend's serve."""
    asked = configuration({}, dense_model())
    asked.additional_config |= additional
    for name, value in {"draft_sample_method": "greedy", **speculative}.items():
        setattr(asked.speculative_config, name, value)
    old, new = (dataclasses.replace(hosts.ADAPTER.RULES, has_draft_options=x) for x in (0, 1))
    early_check._check_draft(asked, old)
    with pytest.raises(SelectionError, match=message):
        early_check._check_draft(asked, new)
    asked.parallel_config.prefill_context_parallel_size = 2
    early_check._check_draft(asked, new)


@pytest.mark.parametrize(
    ("architecture", "v2", "refused"),
    [
        ("Qwen3DSparkModel", False, True),
        ("Qwen3DSparkModel", True, False),
        ("DSparkDraftModel", False, False),
    ],
)
def test_heads_of_dspark_that_the_host_drafts_with_are_left_to_it(architecture, v2, refused):
    draft = dense_model()
    draft.architectures = [architecture]
    draft.hf_config = PretrainedConfig(architectures=[architecture])
    asked = configuration({}, draft, method="dspark")
    asked.use_v2_model_runner = v2
    asked.parallel_config.prefill_context_parallel_size = 2
    with pytest.raises(SelectionError, match="method dspark") if refused else nullcontext():
        early_check._check_draft(
            asked, dataclasses.replace(hosts.ADAPTER.RULES, has_draft_options=True)
        )


def test_tokens_of_a_draft_are_drawn_on_model_runner_v2():
    asked = configuration({}, dense_model())
    asked.speculative_config.draft_sample_method = "probabilistic"
    asked.use_v2_model_runner = True
    early_check._check_draft(
        asked, dataclasses.replace(hosts.ADAPTER.RULES, has_draft_options=True)
    )


def test_one_dtype_is_asked_for_of_the_drafts_cache():
    asked = configuration({}, dense_model(), {"draft_dtype": "bfloat16"})
    asked.speculative_config.kv_cache_dtype = "bfloat16"
    early_check.check_models(asked)
    asked.speculative_config.kv_cache_dtype = "float16"
    with pytest.raises(SelectionError, match=r"draft-dtype.* of bfloat16, .* for float16"):
        early_check.check_models(asked)


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


def test_a_mode_of_graphs_is_judged_by_the_targets_windows_and_not_by_the_drafts():
    """vLLM makes a configuration for the draft too, in whose place of the target the draft is."""
    draft = dense_model()
    draft.hf_text_config.update({"sliding_window": 512})
    config = configuration({}, draft)
    config.compilation_config.cudagraph_mode = CUDAGraphMode.FULL
    early_check.check_models(config)
    config.model_config = draft
    early_check.check_models(config)
    config.model_config = dense_model()
    config.model_config.hf_text_config.update({"sliding_window": 512})
    with pytest.raises(SelectionError, match=r"\[graph-mode\].*write FULL_DECODE_ONLY"):
        early_check.check_models(config)

# SPDX-License-Identifier: Apache-2.0
"""Models whose layers ask for what no backend computes, with vLLM's own layers; without an engine.

vllm-ascend serves them with wrong tokens: its implementation takes each argument.
"""

import json

import pytest
import torch
import vllm_ascend.ops  # noqa: F401 - first of vllm-ascend: its modules import each other in circles
from transformers import BloomConfig, Gemma2Config, LlamaConfig
from vllm.config import set_current_vllm_config
from vllm.engine.arg_utils import EngineArgs
from vllm.model_executor.layers.attention import Attention, EncoderOnlyAttention
from vllm_ascend.attention.attention_v1 import (
    AscendAttentionBackend,
    AscendAttentionBackendImpl,
)

from mkv_ascend.adapters.common.attention import layers
from mkv_ascend.adapters.patching import replaced
from mkv_ascend.attention.selection import SelectionError

SIZES = {
    "vocab_size": 264,
    "hidden_size": 256,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "max_position_embeddings": 512,
}
MODELS = {
    "llama": (LlamaConfig(**SIZES), "LlamaForCausalLM"),
    "gemma2": (Gemma2Config(**SIZES, attn_logit_softcapping=2.0), "Gemma2ForCausalLM"),
    "uncapped": (Gemma2Config(**SIZES, attn_logit_softcapping=None), "Gemma2ForCausalLM"),
    "bloom": (
        BloomConfig(vocab_size=264, hidden_size=256, n_layer=2, n_head=4),
        "BloomForCausalLM",
    ),
}


@pytest.fixture(scope="module")
def configuration(tmp_path_factory):
    """Makes vLLM's configuration of a target, and a draft, of which there are no weights."""

    def folder(name):
        values, architecture = MODELS[name]
        path = tmp_path_factory.mktemp(name)
        (path / "config.json").write_text(
            json.dumps({**values.to_dict(), "architectures": [architecture]})
        )
        return str(path)

    def made(target, draft=None):
        asked = None if draft is None else {"model": folder(draft), "num_speculative_tokens": 3}
        return EngineArgs(
            model=folder(target),
            dtype="bfloat16",
            skip_tokenizer_init=True,
            max_model_len=256,
            speculative_config=asked,
        ).create_engine_config()

    return made


@pytest.mark.core
@pytest.mark.parametrize(
    ("models", "role", "argument"),
    [
        (("gemma2",), "target", "logits_soft_cap"),
        (("gemma2", "llama"), "target", "logits_soft_cap"),
        (("llama", "gemma2"), "draft", "logits_soft_cap"),
        (("bloom",), "target", "alibi_slopes"),
    ],
    ids="-".join,
)
def test_a_model_is_refused_before_an_engine_starts(models, role, argument, configuration):
    with pytest.raises(ValueError, match=f"computes {argument} ") as refusal:
        configuration(*models)
    message = str(refusal.value)
    assert f"every attention layer of the {role} ({role}, full_attention" in message
    assert "Possible: " in message
    assert f"Change: choose another {role}" in message


def test_a_gemma_2_without_a_cap_is_served(configuration):
    assert configuration("uncapped", "uncapped").speculative_config.num_speculative_tokens == 3


@pytest.fixture
def build(configuration, monkeypatch):
    """Builds one layer of vLLM's as a worker does."""
    config = configuration("llama")
    monkeypatch.setattr(torch, "get_default_dtype", lambda: torch.bfloat16)
    original, names = Attention.__init__, map(str, range(100))

    def initialise(layer, *args, **kwargs):
        layers._choose_backend(original, layer, *args, **kwargs)

    def built(layer_class=Attention, head_size=64, **arguments):
        with set_current_vllm_config(config), replaced(Attention, "__init__", initialise):
            return layer_class(
                4,
                head_size,
                0.125,
                cache_config=config.cache_config,
                prefix=f"model.layers.{next(names)}.self_attn.attn",
                **arguments,
            )

    return built


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("logits_soft_cap", 30.0),
        ("alibi_slopes", [0.5, 0.25, 0.125, 0.0625]),
        ("dual_chunk_attention_config", {"chunk_size": 128}),
        ("of_a_later_vllm", 1),
    ],
)
def test_a_layer_is_refused_by_what_it_was_given(argument, value, build):
    """No configuration has told it: a model's class has numbers of its own, as Grok-1's."""
    with pytest.raises(SelectionError, match=f"computes {argument}"):
        build(**{argument: value})


def test_what_asks_for_nothing_is_served(build):
    layer = build(logits_soft_cap=0.0, alibi_slopes=None, use_alibi_sqrt=False, layer_idx=1)
    assert layer.mkv_ascend_choice.request.arguments == frozenset()
    window = build(per_layer_sliding_window=128)
    assert window.mkv_ascend_choice.request.arguments == {"sliding_window"}


def test_values_of_a_size_that_no_operator_takes_are_refused(build):
    """Those of MiniCPM3 have the size of keys; with a block table 192 is none of values."""
    with pytest.raises(SelectionError, match="the size 128 beside heads of 192, not 192"):
        build(head_size=192)
    served = build(head_size=192, head_size_v=128).mkv_ascend_choice
    assert served.backend.name == "fused_infer_attention"


def test_an_encoder_with_a_window_is_refused(build):
    """npu_fusion_attention is called without one, and without sinks."""
    assert build(EncoderOnlyAttention).mkv_ascend_choice.backend.name == "fused_infer_attention"
    with pytest.raises(SelectionError, match="computes sliding_window"):
        build(EncoderOnlyAttention, per_layer_sliding_window=128)


def test_a_layer_is_judged_by_the_implementation_that_it_has(build, monkeypatch):
    """Over ranks that share keys vllm-ascend has another, which looks at no window."""
    of_ranks = type("AscendAttentionDCPImpl", (AscendAttentionBackendImpl,), {})
    monkeypatch.setattr(AscendAttentionBackend, "get_impl_cls", staticmethod(lambda: of_ranks))
    assert type(build().impl) is of_ranks
    with pytest.raises(SelectionError, match="with AscendAttentionDCPImpl computes sliding_window"):
        build(per_layer_sliding_window=128)


def test_a_window_behind_a_prefix_is_refused(build):
    """Its specification is one of full attention, so it would see all tokens."""
    module = pytest.importorskip("vllm.model_executor.layers.attention.rswa_attention")
    with pytest.raises(SelectionError, match="computes rswa_window"):
        build(module.RSWAAttention, rswa_window=128)

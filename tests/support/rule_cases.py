# SPDX-License-Identifier: Apache-2.0
"""Configurations that rules refuse, with the code of the refusal, and some next to them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from mkv_ascend.rules.facts import Facts
from mkv_ascend.rules.model import WeightFormats
from tests.support.rule_facts import (
    A3,
    A5,
    GLM,
    HEAD,
    IN_EIGHT_BITS,
    INT8_LATENTS,
    JAMBA,
    LFM2,
    LLAMA,
    MOE,
    NEW,
    OF_RANKS,
    ON_V2,
    SPARSE,
    UNKEPT,
    V4,
    WINDOWS,
    facts,
    looked_up,
    model,
    pair,
)

DELTA_NET = {**LFM2, "model_type": "qwen3_next"}
WITHOUT_HEADS = {**LLAMA, "num_attention_heads": 0}
MODES = frozenset({"auto", "slow", "hf"})

SERVED = {
    "alone": facts(),
    "a draft": pair(),
    "15 tokens": pair(tokens=15),
    "7 tokens of a gated delta rule": pair(DELTA_NET, tokens=7, recurrent=True, host=NEW),
    "15 tokens of a gated delta rule": pair(DELTA_NET, tokens=15, recurrent=True),
    "a head of one layer that names a whole model": pair(
        method="eagle", named_by_draft=("LlamaForCausalLM",)
    ),
    "a head": pair(method="eagle3", named_by_draft=("LlamaForCausalLMEagle3",)),
    "a draft of states": pair(LFM2, recurrent=True),
    "looked up beside states": looked_up(LFM2, target=model(LFM2, recurrent=True)),
    "Mamba1 without a draft": facts(target=model(JAMBA, recurrent=True)),
    "mtp": pair(MOE, "mtp", target=MOE),
    "stages": pair(pipeline_parallel=2),
    "devices of other nodes": facts(devices_needed=None),
    "8 devices": facts(devices_needed=8),
    "DeepSeek-V4 in one process where a host can": facts(V4, executor="uni"),
    "windows in graphs of decodes": pair(target=WINDOWS, graph_mode="FULL_DECODE_ONLY"),
    "heads of 128 in 8 bits": facts(
        target=model({**LLAMA, "architectures": ["Qwen3ForCausalLM"]}, formats=IN_EIGHT_BITS)
    ),
    "moved experts": facts(
        MOE, expert_parallel=True, tensor_parallel=8, ascend={"eplb_config": {"dynamic_eplb": True}}
    ),
    "a window": pair(ours={"drafting": {"window": 512}}),
    "a window of MLA that is as long as requests": pair(
        MOE, target=MOE, ours={"drafting": {"window": 8192}}
    ),
    "a draft that eight ranks keep whole": pair(
        ours={"kv_cache": {"replicate_draft": True}}, decode_context_parallel=8, tensor_parallel=8
    ),
    "pages that groups share": pair(ours={"layout": {"shared_pages": True}}),
    "shares": pair(decode_context_parallel=2, tensor_parallel=2, host=NEW),
    "V2": pair(runner="v2", host=NEW),
    "experts of a dense draft that move on V2": pair(runner="v2", host=NEW, enable_eplb=True),
    "probabilistic on V2": pair(
        runner="v2", host=NEW, options={"draft_sample_method": "probabilistic"}
    ),
    "connector of host memory": facts(connectors=frozenset({"OffloadingConnector"}), host=NEW),
    "int8 keys that weights describe": facts(
        target=model({**LLAMA, "architectures": ["Qwen3ForCausalLM"]}, formats=IN_EIGHT_BITS),
        cache_dtype="int8",
        host=NEW,
    ),
    "int8 keys of an indexer": facts(SPARSE, cache_dtype="int8", host=NEW),
    "int8 latents of a node that decodes": facts(
        target=model(MOE, formats=INT8_LATENTS), cache_dtype="int8", host=NEW, kv_role="kv_consumer"
    ),
    "fp8 latents on an A5": facts(MOE, cache_dtype="fp8", device=A5),
    "experts without matrices": facts({**MOE, "zero_expert_num": 4}),
    "mtp of an indexer over shares on V2": pair(
        SPARSE, "mtp", target=SPARSE, decode_context_parallel=2, tensor_parallel=2, **ON_V2
    ),
    "mtp whose experts move on V2": pair(MOE, "mtp", target=MOE, enable_eplb=True, **ON_V2),
    "a draft without scheduling ahead on V2": pair(async_scheduling=False, **ON_V2),
    "mtp that shares a choice of keys": pair(GLM, "mtp", target=GLM),
    "the same over rows of ranks": pair(GLM, "mtp", target=GLM, host=NEW, ascend=OF_RANKS),
    "windows of all layers in blocks": pair(WINDOWS, "dflash", host=NEW),
    "an end of drafting": pair(ours={"drafting": {"give_up_below": 0.5}}),
    "states of all blocks where there are none": facts(states_of_all_blocks=True, host=NEW),
    "a whole head on each rank": pair(
        method="eagle3", options={"draft_tensor_parallel_size": 1}, tensor_parallel=2
    ),
    "no heads where nothing attends": facts(target=model(WITHOUT_HEADS, alone=True)),
    "neither experts nor drafting layers": facts(
        {**LLAMA, "num_experts": 0, "num_nextn_predict_layers": 0}
    ),
    "a mode of a tokenizer": facts(tokenizer_mode="slow", tokenizer_modes=MODES),
}

V2_GIVEN: dict[str, dict[str, Any]] = {
    "shares of prompts": {"prefill_context_parallel": 2},
    "shares beside windows": {"decode_context_parallel": 2, "target": WINDOWS},
    "moving experts": {"draft": MOE, "enable_eplb": True},
    "copies of experts": {"enable_eplb": True, "eplb_copies": 2},
    "a split vocabulary": {"ascend": {"finegrained_tp_config": {"lmhead_tensor_parallel_size": 2}}},
    "sequence parallelism": {
        "tensor_parallel": 2,
        "expert_parallel": True,
        "ascend": {"enable_flashcomm1": True},
    },
    "adaptive verification": {"options": {"enable_adaptive_verification": True}},
    "one choice of keys": {"draft": {**HEAD, "index_share_for_mtp_iteration": True}},
}

REFUSED_BY_CODE: dict[str, dict[str, Facts]] = {
    "model-size": {
        "no heads": facts(WITHOUT_HEADS),
        "no heads of keys": facts({**LLAMA, "num_key_value_heads": 0}),
        "a draft of no layers": pair({**HEAD, "num_hidden_layers": 0}),
        "words fewer than none": facts({**LLAMA, "vocab_size": -1}),
    },
    "tokenizer": {"an unknown tokenizer": facts(tokenizer_mode="nonsense", tokenizer_modes=MODES)},
    "dtype": {"float32": facts(dtype="float32"), "DeepSeek-V4 in half": facts(V4, dtype="float16")},
    "kv-cache-dtype": {
        "fp8 cache": facts(cache_dtype="fp8"),
        "int8 cache of plain weights": facts(cache_dtype="int8", host=NEW),
        "fp8 latents on an A2": facts(MOE, cache_dtype="fp8"),
        "fp8 keys on an A5": facts(cache_dtype="fp8", device=A5),
        "int8 latents of a node that reads": facts(
            target=model(MOE, formats=INT8_LATENTS),
            cache_dtype="int8",
            host=NEW,
            kv_role="kv_producer",
        ),
    },
    "weight-format": {
        "fp8 weights": facts({**LLAMA, "quantization_config": {"quant_method": "fp8"}}),
        "quantised experts without matrices": facts(
            target=model({**MOE, "zero_expert_num": 4}, formats=WeightFormats(frozenset({"W8A8"})))
        ),
    },
    "cache-format": {
        "8 bits of a family whose scales are not loaded": facts(
            target=model(LLAMA, formats=IN_EIGHT_BITS)
        ),
        "drafting layers of 8 bits": replace(
            pair(LLAMA, "mtp", host=NEW),
            target=model(LLAMA, formats=WeightFormats(frozenset({"W8A8"}), frozenset({32}))),
        ),
    },
    "family": {"MiniMax-M2 drafts": pair({**HEAD, "architectures": ["MiniMaxM2ForCausalLM"]})},
    "chunks": {"chunks": facts({**LLAMA, "attention_chunk_size": 8192})},
    "lora-vocabulary": {
        "adapters over an odd vocabulary": facts({**LLAMA, "vocab_size": 32001}, lora=True)
    },
    "executor": {"DeepSeek-V4 in one process": facts(V4, executor="uni", host=NEW)},
    "target-states": {
        "drafts beside Mamba1": looked_up(target=model(JAMBA, recurrent=True)),
        "drafts beside Kimi delta attention": looked_up(
            target=model({**LLAMA, "model_type": "kimi_linear"}, recurrent=True)
        ),
        "drafts beside states alone": looked_up(target=model(LFM2, alone=True)),
    },
    "kept-states": {
        "states of every block": facts(
            target=model(LFM2, recurrent=True), states_of_all_blocks=True, host=NEW
        )
    },
    "layout": {
        "one kind of cache beside states": facts(
            target=model(LFM2, recurrent=True), one_kind_of_cache=True
        )
    },
    "block-size": {"blocks of 100": facts(block_size=100)},
    "kv-connector": {
        "OffloadingConnector": facts(connectors=frozenset({"OffloadingConnector"})),
        "states and SimpleCPUOffloadConnector": facts(
            target=model(LFM2, recurrent=True), connectors=frozenset({"SimpleCPUOffloadConnector"})
        ),
    },
    "draft-caches": {
        "a draft beside DeepSeek-V4 and transfer": pair(target=V4, host=NEW, has_transfer=True)
    },
    "devices": {"more devices than there are": facts(devices_needed=16)},
    "draft-ranks": {
        "a draft on fewer ranks": pair(tensor_parallel=2, options={"draft_tensor_parallel_size": 1})
    },
    "pipeline": {
        "a head without keys over stages": pair(
            {**HEAD, "architectures": ["Gemma4MTPModel"]}, "mtp", pipeline_parallel=2
        ),
        "images over stages": pair(target={**LLAMA, "vision_config": {}}, pipeline_parallel=2),
        "Granite 4 over stages": looked_up(
            target=model({**LLAMA, "model_type": "granitemoehybrid"}, recurrent=True),
            pipeline_parallel=2,
        ),
    },
    "draft-shares": {
        "a draft that nine ranks keep whole": pair(
            ours={"kv_cache": {"replicate_draft": True}},
            decode_context_parallel=9,
            tensor_parallel=9,
        ),
        "windows over shares of prompts": pair(WINDOWS, prefill_context_parallel=2),
        "keys on each rank of MLA": pair(
            MOE, target=MOE, ours={"kv_cache": {"replicate_draft": True}}, decode_context_parallel=2
        ),
    },
    "tokens-per-step": {
        "16 tokens": pair(tokens=16),
        "8 tokens of a gated delta rule": looked_up(
            DELTA_NET, target=model(DELTA_NET, recurrent=True), tokens=8, host=NEW
        ),
        "8 tokens of a draft's gated delta rule": pair(
            DELTA_NET, tokens=8, recurrent=True, host=NEW
        ),
    },
    "draft-class": {
        "a whole model as a head": pair(LLAMA, "eagle3", named_by_draft=("LlamaForCausalLM",)),
        "an EAGLE-3 head as a model": pair(named_by_draft=("LlamaForCausalLMEagle3",)),
    },
    "hidden-size": {"a head of another width": pair({**HEAD, "hidden_size": 2048}, "eagle3")},
    "draft-states": {
        "a draft of Mamba1": pair(JAMBA, recurrent=True),
        "a draft of states alone": pair(LFM2, alone=True),
    },
    "recurrent-draft-option": {
        "a recurrent draft and transfer": pair(LFM2, recurrent=True, has_transfer=True)
    },
    "head-states": {"eagle3 over DeepSeek-V4": pair(HEAD, "eagle3", target=V4)},
    "head-depths": {
        "depths beyond": pair({**HEAD, "eagle_aux_hidden_state_layer_ids": [2, 99]}, "eagle3")
    },
    "dflash": {
        "dflash over shares": pair(HEAD, "dflash", prefill_context_parallel=2),
        "windows in blocks": pair({**WINDOWS, "num_hidden_layers": 1}, "dflash"),
        "windows of some layers in blocks": pair(
            {**WINDOWS, "layer_types": ["sliding_attention", "full_attention"]}, "dflash", host=NEW
        ),
    },
    "draft-rope": {"M-RoPE": pair({**HEAD, "rope_scaling": {"mrope_section": [1, 2, 3]}})},
    "draft-batch": {"without padding": pair(options={"disable_padded_drafter_batch": True})},
    "draft-option": {
        "probabilistic on V1": pair(host=NEW, options={"draft_sample_method": "probabilistic"}),
        "likeliest tokens that are drawn": pair(
            options={"use_local_argmax_reduction": True, "draft_sample_method": "probabilistic"},
            **ON_V2,
        ),
        "a choice of keys that nobody keeps": pair(GLM, "mtp", target=UNKEPT),
        "a choice over ranks": pair(GLM, "mtp", target=GLM, ascend=OF_RANKS),
    },
    "logits-processors": {"logits processors": looked_up(logits_processors=True)},
    "draft-dtype": {
        "dtype of no draft's cache": facts(ours={"kv_cache": {"draft_dtype": "float16"}}),
        "a dtype of a cache that no draft has": looked_up(
            ours={"kv_cache": {"draft_dtype": "bfloat16"}}
        ),
    },
    "draft-window": {"a window of MLA": pair(MOE, target=MOE, ours={"drafting": {"window": 512}})},
    "give-up": {
        "giving up what is looked up": looked_up(ours={"drafting": {"give_up_below": 0.2}})
    },
    "runner": {
        "an eagle3 head of latents over shares on V2": pair(
            *(MOE, "eagle3"),
            target=MOE,
            runner="v2",
            host=NEW,
            decode_context_parallel=2,
            tensor_parallel=2,
        ),
        "stages in turn on V2": pair(
            runner="v2", host=NEW, pipeline_parallel=2, async_scheduling=False
        ),
        **{
            f"{name} on V2": pair(runner="v2", host=NEW, **given)
            for name, given in V2_GIVEN.items()
        },
        "a draft model of an indexer over shares on V2": pair(
            SPARSE, target=SPARSE, decode_context_parallel=2, tensor_parallel=2, **ON_V2
        ),
        "rows that ranks split over shares on V2": pair(
            *(SPARSE, "mtp"),
            target=SPARSE,
            ascend={"enable_dsa_cp": True},
            decode_context_parallel=2,
            tensor_parallel=2,
            **ON_V2,
        ),
        "a draft model whose experts move on V2": pair(MOE, target=MOE, enable_eplb=True, **ON_V2),
    },
    "expert-places": {
        "experts that move between no ranks": facts(
            MOE, ascend={"eplb_config": {"dynamic_eplb": True}}
        ),
        "copies of experts": looked_up(
            MOE,
            expert_parallel=True,
            tensor_parallel=8,
            ascend={"eplb_config": {"dynamic_eplb": True, "num_redundant_experts": 8}},
        ),
        "copies of experts of drafting layers": pair(
            *(MOE, "mtp"),
            target=MOE,
            host=NEW,
            device=A3,
            expert_parallel=True,
            tensor_parallel=8,
            ascend={"eplb_config": {"dynamic_eplb": True, "num_redundant_experts": 8}},
        ),
    },
    "experts": {
        "experts of the draft alone": pair(
            {**HEAD, "num_local_experts": 8}, tensor_parallel=2, ascend={"enable_flashcomm1": 1}
        )
    },
    "host-option": {
        "weights in the host's memory": facts(cpu_offload_gb=4.0),
        "weights of two models layer by layer": pair(prefetches_weights=True),
    },
    "backend-name": {"FLASHINFER": facts(vllm_backends=("FLASHINFER", None))},
    "backend": {
        "a backend of another kind": facts(ours={"attention": {"target": "mla"}}),
        "heads of 72": facts({**LLAMA, "head_dim": 72}),
    },
    "graph-mode": {
        "whole graphs of what is not compiled": facts(
            graph_mode="FULL_DECODE_ONLY", is_compiled=False
        ),
        "whole graphs of windows": looked_up(WINDOWS, graph_mode="FULL", target=model(WINDOWS)),
    },
}
REFUSED = {
    name: (code, found) for code, cases in REFUSED_BY_CODE.items() for name, found in cases.items()
}

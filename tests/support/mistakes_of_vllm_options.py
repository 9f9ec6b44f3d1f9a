# SPDX-License-Identifier: Apache-2.0
"""Mistakes with options of vLLM that it takes elsewhere: see ``mistakes``.

On other devices, without drafts, of models with experts, or with other numbers beside them.
"""

from __future__ import annotations

from tests.support import hosts
from tests.support.mistake import DRAFT, LLAMA, additional, compilation, one, spec

REFUSES_NAMES = bool(hosts.ADAPTER.RULES.ascend_options)
ON_RANKS = ("{DeepSeek-V3}", "--enable-expert-parallel", "-tp", "8")
BALANCED = (*ON_RANKS[:-1], "4", "--data-parallel-size", "2")
OWN = ("--logits-processors", "my_package.processors:Shout")

VLLM_OPTIONS = (
    one(
        "logits processors beside a draft",
        "logits-processors",
        *(LLAMA, *OWN),
        *spec(DRAFT),
        says="tokens that it verifies",
    ),
    one(
        "logits processors beside lookups",
        "logits-processors",
        *(LLAMA, *OWN),
        *spec(None, method="ngram"),
        says="tokens that it verifies",
    ),
    one(
        "experts that come and go",
        "host-option",
        *(LLAMA, "--enable-elastic-ep"),
        says="--enable-elastic-ep is given",
    ),
    one(
        "weights in the host's memory",
        "host-option",
        *(LLAMA, "--cpu-offload-gb", "4"),
        says="--cpu-offload-gb is 4",
    ),
    one(
        "weights of two models that are fetched layer by layer",
        "host-option",
        *(LLAMA, "--offload-group-size", "8", "--offload-num-in-group", "2"),
        *spec(DRAFT),
        says="does so for one model",
    ),
    one(
        "steps by a limit of time",
        "additional-config" if REFUSES_NAMES else "host-option",
        *(LLAMA, "--additional-config", '{"SLO_limits_for_dynamic_batch": 50}'),
        says="SLO_limits_for_dynamic_batch",
    ),
    one(
        "one kind of cache for states and keys",
        "layout",
        *("{LFM2-1.2B}", "--disable-hybrid-kv-cache-manager"),
        says="states (short convolution) beside keys",
    ),
    one(
        "one kind of cache for keys and a draft's states",
        "layout",
        *(LLAMA, "--disable-hybrid-kv-cache-manager"),
        *spec("{lfm2-draft}"),
        says="the draft",
    ),
    one(
        "experts of a model without any",
        "experts",
        *(LLAMA, "-tp", "2", "--enable-expert-parallel"),
        says="has no experts",
    ),
    one(
        "copies of a model without experts behind a balancer",
        "experts",
        *(LLAMA, "--data-parallel-size", "2", "--data-parallel-rank", "0"),
        says="--data-parallel-rank is given",
    ),
    one(
        "shares of ranks that are too few",
        "number",
        *(LLAMA, "-tp", "4", "--decode-context-parallel-size", "3"),
        says="Possible: 1, 2, 4",
    ),
    one(
        "no chunks, and steps below the longest prompt",
        "step-size",
        *(LLAMA, "--max-model-len", "8192", "--no-enable-chunked-prefill"),
        *("--max-num-batched-tokens", "4096"),
        says="8192 tokens or more",
    ),
    one(
        "Gemma 3 in float16",
        "dtype",
        *("{gemma-3-1b}", "--dtype", "half"),
        says="gemma3_text",
    ),
    one(
        "requests of no tokens",
        "number",
        *(LLAMA, "--max-model-len", "0"),
        says="--max-model-len is 0",
    ),
    one(
        "fewer positions by an override",
        "max-model-len",
        *("{gemma-3-1b}", "--max-model-len", "4096"),
        *("--hf-overrides", '{"max_position_embeddings": 2048}'),
        says="positions for 2048 tokens",
    ),
    one(
        "an override that no model has",
        "model-config",
        *(LLAMA, "--hf-overrides", '{"vocab_size": 0}'),
        says="with --hf-overrides",
    ),
    one(
        "a map of experts",
        "expert-places",
        *ON_RANKS,
        *spec(None, method="mtp"),
        *additional(eplb_config={"expert_map_path": "map.json"}),
        says="expert_map_path of eplb_config is given",
    ),
    one(
        "copies of experts",
        "expert-places",
        *ON_RANKS,
        *spec(None, method="ngram"),
        *additional(eplb_config={"dynamic_eplb": True, "num_redundant_experts": 8}),
        says="num_redundant_experts of eplb_config is",
    ),
    one(
        "experts that move between no ranks",
        "expert-places",
        *("{DeepSeek-V3}", "-tp", "8"),
        *additional(eplb_config={"dynamic_eplb": True}),
        says="no ranks share experts out",
    ),
    one(
        "graphs of MLA that is not compiled",
        "graph-mode",
        *("{DeepSeek-V3}", "-tp", "8"),
        *compilation(mode=0, cudagraph_mode="FULL_DECODE_ONLY"),
        says="the model is not compiled",
    ),
    one(
        "captures that contradict their largest size",
        "capture-sizes",
        *(LLAMA, "--max-num-batched-tokens", "256"),
        *compilation(cudagraph_capture_sizes=[8, 64, 512], max_cudagraph_capture_size=512),
        says="that a step reaches is 64",
    ),
    one(
        "no size to capture",
        "capture-sizes",
        *(LLAMA, *compilation(cudagraph_capture_sizes=[])),
        says="has no size",
    ),
    one(
        "servers without clients",
        "servers",
        *(LLAMA, "--data-parallel-size", "2", "--headless", "--api-server-count", "2"),
        says="--api-server-count is 2",
    ),
    one(
        "balancers of nodes without clients",
        "servers",
        *(LLAMA, "--data-parallel-size", "4", "--headless", "--data-parallel-hybrid-lb"),
        *("--data-parallel-size-local", "2"),
        says="--data-parallel-hybrid-lb",
    ),
    one(
        "two balancers",
        "servers",
        *(*BALANCED, "--data-parallel-rank", "1", "--data-parallel-hybrid-lb"),
        says="in 2 ways",
    ),
    one(
        "a rank beyond the last",
        "servers",
        *(*BALANCED, "--data-parallel-rank", "2"),
        says="0 to 1",
    ),
    one(
        "no rank behind a balancer",
        "servers",
        *(*BALANCED, "--data-parallel-external-lb"),
        says="which rank this server is",
    ),
    one(
        "a rank that is two",
        "servers",
        *(*BALANCED, "--data-parallel-rank", "1", "--data-parallel-size-local", "2"),
        says="is one rank",
    ),
)

# SPDX-License-Identifier: Apache-2.0
"""What rules judge: the configuration that vLLM made, as one frozen value.

``adapters/common/judge/facts_of_config.py`` reads it from a ``VllmConfig``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mkv_ascend.attention.entry import DeviceGeneration, Environment
from mkv_ascend.attention.selection import SelectionOptions
from mkv_ascend.config import MkvConfig
from mkv_ascend.rules.host import HostRules
from mkv_ascend.rules.model import ModelFacts

EMULATED = "the emulated NPU, an Ascend A2 in host memory"
"""``DeviceFacts.source`` on the emulated NPU."""

LOOKED_UP = frozenset({"ngram", "ngram_gpu", "suffix"})
"""Methods that look drafts up, without a model."""
WITHOUT_CACHE = LOOKED_UP | {"medusa", "mlp_speculator"}
"""Methods whose drafts keep no KV cache."""
BLOCKS = frozenset({"dflash", "dspark"})
"""Methods whose drafts draft all tokens of a proposal in one pass over mask tokens."""
SERVED_DSPARK = frozenset({"Qwen3DSparkModel", "Qwen3OmniDSparkModel"})
"""Classes of drafts of method dspark that proposals of ours serve, on model runner V1. Their layers
are dense and have a folder of their own. Those of DeepSeek-V4, GLM-5, Kimi-K3 and Gemma 4 keep
vllm-ascend's own."""
OF_THE_HOST = frozenset({"DFlash2DraftModel", "Glm5NextMTPModel", "Glm5NextForCausalLM"})
"""Classes of drafts that vllm-ascend 0.30.0rc2 has proposers of their own for."""
STEP3P5 = "step3p5"


def split_vocabulary(additional_config: Any) -> bool:
    """Whether these options of vllm-ascend let ranks split the vocabulary of sampling."""
    found = additional_config
    for name in ("finegrained_tp_config", "lmhead_tensor_parallel_size"):
        found = found.get(name) if isinstance(found, Mapping) else None
    return type(found) is int and found > 0


@dataclass(frozen=True)
class DeviceFacts:
    """The devices that the command would run on.

    ``count``: None where it is not known. ``memory_bytes``: of each. ``source``: how this is known,
    for the answer. ``extra_dtypes``: what an emulated NPU takes beyond what operators document.
    ``modules``: modules of backends that can be imported.
    """

    count: int | None
    memory_bytes: int | None
    generation: DeviceGeneration
    source: str
    extra_dtypes: frozenset[str] = frozenset()
    modules: frozenset[str] = frozenset()
    batch_invariant: bool = False


@dataclass(frozen=True)
class SpeculationFacts:
    """vLLM's speculative configuration. ``tokens``: of one proposal; ``options``: other fields."""

    method: str
    tokens: int
    options: Mapping[str, Any] = field(hash=False)

    @property
    def has_cache(self) -> bool:
        """Whether the draft keeps a KV cache."""
        return self.method not in WITHOUT_CACHE

    @property
    def drafts_blocks(self) -> bool:
        """Whether one pass over a block of mask tokens drafts all tokens."""
        return self.method in BLOCKS


@dataclass(frozen=True, kw_only=True)
class Facts:
    """A configuration as rules read it; names are those of vLLM's options where it has them.

    ``draft``: the draft's model, the target itself for its own MTP layers; None without one.
    ``named_by_draft``: the classes that its config.json names, before vLLM makes a head of them.
    ``devices_needed``: on this machine, None where ray chooses nodes. ``connectors``: names of KV
    connectors. ``ascend``: ``--additional-config`` as vllm-ascend comes to it.
    ``tokenizer_modes``: those that vLLM knows; empty: not told.
    """

    options: MkvConfig
    target: ModelFacts
    device: DeviceFacts
    host: HostRules
    runner: str = "v1"
    speculation: SpeculationFacts | None = None
    draft: ModelFacts | None = None
    named_by_draft: tuple[str, ...] = ()
    dtype: str = "bfloat16"
    max_model_len: int = 0
    graph_mode: str = "NONE"
    is_compiled: bool = True
    async_scheduling: bool = True
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    data_parallel: int = 1
    prefill_context_parallel: int = 1
    decode_context_parallel: int = 1
    expert_parallel: bool = False
    devices_needed: int | None = None
    executor: str | None = None
    kv_role: str | None = None
    connectors: frozenset[str] = frozenset()
    has_transfer: bool = False
    has_offloading: bool = False
    prefix_caching: bool = False
    block_size: int = 128
    cache_dtype: str = "auto"
    one_kind_of_cache: bool = False
    states_of_all_blocks: bool = False
    lora: bool = False
    text_only: bool = False
    logits_processors: bool = False
    max_num_batched_tokens: int = 0
    enable_eplb: bool = False
    eplb_copies: int = 0
    cpu_offload_gb: float = 0.0
    prefetches_weights: bool = False
    dynamic_speculation: bool = False
    vllm_backends: tuple[str | None, str | None] = (None, None)
    vllm_by_kind: tuple[tuple[str, str], ...] = ()
    ascend: Mapping[str, Any] = field(default_factory=dict, hash=False)
    load_format: str = "auto"
    draft_load_format: str = "auto"
    tokenizer_mode: str = "auto"
    tokenizer_modes: frozenset[str] = frozenset()

    @property
    def models(self) -> tuple[ModelFacts, ...]:
        """Target and draft; once where the target's own layers draft."""
        own_layers = self.speculation is not None and self.speculation.method == "mtp"
        if self.draft is None or (own_layers and self.draft.name == self.target.name):
            return (self.target,)
        return (self.target, self.draft)

    @property
    def name_of_draft(self) -> str:
        """Folder of the draft; empty without one."""
        return "" if self.draft is None else self.draft.name

    def option_of_draft(self, name: str) -> Any:
        """A field of the speculative configuration; None without one."""
        return None if self.speculation is None else self.speculation.options.get(name)

    @property
    def context_parallel(self) -> int:
        """Ranks over which a sequence is spread."""
        return self.prefill_context_parallel * self.decode_context_parallel

    @property
    def splits_vocabulary(self) -> bool:
        """Whether ranks split the vocabulary of sampling."""
        return split_vocabulary(self.ascend)

    @property
    def sequence_parallel(self) -> bool:
        """Whether ranks have the hidden states of a share of the tokens (``enable_flashcomm1``)."""
        return bool(self.ascend.get("enable_flashcomm1")) and self.tensor_parallel > 1

    @property
    def has_full_graphs(self) -> bool:
        """Whether attention runs inside graphs."""
        return self.graph_mode.startswith("FULL")

    @property
    def drafts(self) -> tuple[SpeculationFacts, ModelFacts] | None:
        """Speculation and draft; None without, and for heads of dspark that a host drafts with."""
        if self.speculation is None or self.draft is None:
            return None
        if self.speculation.method == "dspark" and self.has_own_proposer:
            return None
        return self.speculation, self.draft

    @property
    def has_own_proposer(self) -> bool:
        """Whether the host alone has a proposer for the draft's class, on this model runner."""
        if self.speculation is None or self.draft is None:
            return False
        names = self.draft.architectures
        if self.speculation.method == "dspark":
            return self.runner == "v2" or SERVED_DSPARK.isdisjoint(names)
        return not OF_THE_HOST.isdisjoint(names)

    @property
    def host_drafts(self) -> bool:
        """Whether vllm-ascend's own proposal drafts, though the draft has a cache."""
        return self.has_own_proposer or self.host_keeps_shares or self.layers_in_turn > 1

    @property
    def host_keeps_shares(self) -> bool:
        """Whether ranks share sequences in a way that vllm-ascend's own proposal alone lays out."""
        if self.prefill_context_parallel > 1:
            return True
        draft = self.draft
        if self.decode_context_parallel == 1 or draft is None:
            return False
        return draft.is_compressed or (draft.has_indexer and not self._plans_indexer)

    @property
    def _plans_indexer(self) -> bool:
        """Whether our proposal lays out keys of a draft's indexer, of which each rank keeps all."""
        heads = self.speculation is not None and self.speculation.method == "mtp"
        sparse = self.target.has_indexer and not self.target.is_compressed
        split = bool(self.ascend.get("enable_dsa_cp"))
        return self.host.captures_shares and heads and sparse and not split

    @property
    def layers_in_turn(self) -> int:
        """Drafting layers of Step-3.5, of which each pass runs another; 0 for other drafts."""
        in_turn = self.speculation is not None and self.speculation.method == "mtp"
        return self.target.mtp_layers if in_turn and self.target.model_type == STEP3P5 else 0

    @property
    def takes_images(self) -> bool:
        """Whether prompts may hold images or sound, whose tokens have positions of their own."""
        inputs = any(name in self.target.values for name in ("vision_config", "audio_config"))
        return not self.text_only and (inputs or self.target.has_several_positions)

    @property
    def environment(self) -> Environment:
        """What backends can rely on where the command runs."""
        return Environment(
            device_generation=self.device.generation,
            module_available=lambda name: name in self.device.modules,
            batch_invariant=self.device.batch_invariant,
            acl_graphs=self.has_full_graphs,
            extra_dtypes=self.device.extra_dtypes,
        )

    @property
    def selection(self) -> SelectionOptions:
        """Our options of backends, and vLLM's own of both models."""
        target, draft = self.vllm_backends
        return SelectionOptions(
            self.options.attention,
            vllm_target=target,
            vllm_draft=draft,
            vllm_by_kind=self.vllm_by_kind,
        )

    def asked_quantization(self, model: ModelFacts) -> str | None:
        """How the model's weights are quantised: as asked for, or as its files say."""
        return model.asked_quantization or model.quantization

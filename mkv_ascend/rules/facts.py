# SPDX-License-Identifier: Apache-2.0
"""What rules judge: the configuration that vLLM made, as one frozen value, and the host's rules.

``adapters/common/judge/facts_of_config.py`` reads it from a ``VllmConfig``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from mkv_ascend.attention.entry import DeviceGeneration, Environment
from mkv_ascend.attention.selection import SelectionOptions
from mkv_ascend.config import MkvConfig
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
        draft, target = self.draft, self.target
        if draft is None or (self.method == "mtp" and draft.name == target.name):
            return (target,)
        return (target, draft)

    @property
    def method(self) -> str | None:
        """Method of speculative decoding; None without any."""
        return None if self.speculation is None else self.speculation.method

    def option_of_draft(self, name: str) -> Any:
        """A field of the speculative configuration; None without one."""
        return None if self.speculation is None else self.speculation.options.get(name)

    @property
    def has_draft_cache(self) -> bool:
        """Whether there is a draft that keeps a KV cache."""
        return self.speculation is not None and self.speculation.has_cache

    @property
    def transfer_option(self) -> str | None:
        """What lets caches be left to vllm-ascend for a KV connector; None where nothing does."""
        if self.has_transfer:
            return "--kv-transfer-config"
        return "--kv-offloading-size" if self.has_offloading else None

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
        own = self.method == "dspark" and self.has_own_proposer
        return None if own else (self.speculation, self.draft)

    @property
    def has_own_proposer(self) -> bool:
        """Whether the host alone has a proposer for the draft's class, on this model runner."""
        if self.speculation is None or self.draft is None:
            return False
        names = self.draft.architectures
        if self.method == "dspark":
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
        sparse = self.target.has_indexer and not self.target.is_compressed
        split = bool(self.ascend.get("enable_dsa_cp"))
        return self.host.captures_shares and self.method == "mtp" and sparse and not split

    @property
    def layers_in_turn(self) -> int:
        """Drafting layers of Step-3.5, of which each pass runs another; 0 for other drafts."""
        in_turn = self.method == "mtp" and self.target.model_type == STEP3P5
        return self.target.mtp_layers if in_turn else 0

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


@dataclass(frozen=True)
class UnservedFamily:
    """A family of models that a host has classes for and does not serve, or serves wrongly.

    ``classes``: names in ``architectures`` of config.json, of which a model has no other one.
    ``why``: what the host does with it, to be read behind "MODEL is "; ``{dtype}`` stands for the
    model's. ``possible``, ``change``: as of a ``Refusal``. ``dtypes``: those in which it is served.
    ``as_draft``: whether it is served as a target.
    """

    classes: frozenset[str]
    why: str
    possible: str
    change: str
    dtypes: frozenset[str] = frozenset()
    as_draft: bool = False

    def is_of(self, architectures: Iterable[str], dtype: str, *, drafts: bool) -> bool:
        """Whether a model of this family is not served."""
        names = frozenset(architectures)
        is_family = bool(names) and names <= self.classes
        return is_family and dtype not in self.dtypes and (drafts or not self.as_draft)


MINIMAX_M2_AS_DRAFT = UnservedFamily(
    # worker/patch_minimax_m2.py takes them from globals of ops/rotary_embedding.py.
    frozenset({"MiniMaxM2ForCausalLM"}),
    "a MiniMax-M2: vllm-ascend rotates its queries and keys by cosines and sines of the target's "
    "positions, which it keeps once per process",
    "MiniMax-M2 as the target, and drafts of other families",
    "choose another draft",
    as_draft=True,
)


@dataclass(frozen=True)
class HostRules:
    """What a host does with models, as far as a configuration tells. ``vllm``: its release."""

    vllm: str
    plans_compressed: bool
    """Whether caches of DeepSeek-V4 alone are planned, not left to vllm-ascend; beside layers of
    another model they are planned on any host."""
    compressed_in_one_process: bool
    """Whether a worker in the engine core's own process serves them."""
    delta_attention_drafts: bool
    """Whether Kimi delta attention keeps a state for each draft token, so that rejected ones are
    taken back."""
    int8_cache_families: frozenset[str] = frozenset()
    """Classes of models whose scales of int8 keys and values are loaded; empty: all."""
    int8_is_an_option: bool = False
    """Whether ``--kv-cache-dtype int8`` asks for caches of 8 bits: latents of sparse attention, or
    what weights describe."""
    offloads_split_caches: bool = False
    """Whether OffloadingConnector takes caches whose keys and values are tensors of their own: by a
    worker of vllm-ascend's in place of vLLM's."""
    offload_takes_one_group: bool = False
    """Whether SimpleCPUOffloadConnector takes one KV group alone, not several without states."""
    whole_steps_uncompiled: bool = False
    """Whether whole steps of a model that is not compiled are captured: asked for, or left where
    pieces were asked for beside them. MLA is not, on model runner V1."""
    captures_shares: bool = False
    """Whether a draft's passes are captured where ranks share the keys of a sequence."""
    has_draft_options: bool = False
    """Whether vLLM's and vllm-ascend's options of drafts of 0.30.0 are there."""
    moves_choices_of_ranks: bool = False
    """Whether what a draft's first pass chose reaches the ranks of later passes (DSA-CP)."""
    windows_in_blocks: bool = False
    """Whether layers of drafts of mask tokens may have windows; else vLLM's class leaves them
    out."""
    thinking_budgets: bool = True
    """Whether a request's ``thinking_token_budget`` holds."""
    most_tokens_of_gated_delta_rule: int | None = None
    """Tokens of one request that its operator verifies in a step; None: as many as attention."""
    states_beside_drafts: frozenset[str] = frozenset()
    """Fields of configurations with recurrent states that drafts are served beside; empty: any."""
    refuses_states_of_all_blocks: bool = False
    """Whether ``--mamba-cache-mode all`` reaches an engine, which gives it useless blocks."""
    ascend_options: frozenset[str] = frozenset()
    """Names that are known in ``--additional-config``, where others are refused; empty: any."""
    loads_experts_by_map: bool = False
    """Whether weights of experts are loaded where ``eplb_config`` of ``--additional-config`` places
    them, copies, too, on model runner V1."""
    unserved_families: tuple[UnservedFamily, ...] = ()
    """Families that the host refuses or serves wrongly."""
    in_turn_by_default: frozenset[str] = frozenset()
    """Methods whose steps vLLM schedules ahead where ``--async-scheduling`` asks for it alone."""

# SPDX-License-Identifier: Apache-2.0
"""Everything that checks judge: one frozen value for one command on one machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mkv_ascend.attention.entry import DeviceGeneration
from mkv_ascend.checks import compressed_layers, graph_modes
from mkv_ascend.checks.block_sizes import takes_asked_size
from mkv_ascend.checks.host_rules import HostRules
from mkv_ascend.checks.model import ModelFacts
from mkv_ascend.checks.model_layer import NamedLayer
from mkv_ascend.checks.variables import NZ_MODE
from mkv_ascend.config import MkvConfig
from mkv_ascend.layout.planning import PlanInputs, ServingPlan

__all__ = [
    "BLOCKS",
    "EMULATED",
    "LOOKED_UP",
    "SERVED_DSPARK",
    "DeviceFacts",
    "ServeFacts",
    "SpeculationFacts",
    "split_vocabulary",
]

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
    """``--speculative-config``: ``method`` as vLLM comes to it; ``tokens``: of one proposal."""

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

    @property
    def kept_of_each_request(self) -> int:
        """Tokens of a step that vLLM keeps back for the draft of each request.

        One of a draft model, and one of each mask (``max_num_new_slots_for_drafting`` of vLLM's
        ``SpeculativeConfig``).
        """
        in_parallel = self.options.get("parallel_drafting") or self.drafts_blocks
        return (self.tokens - 1 if in_parallel else 0) + (self.method == "draft_model")


@dataclass(frozen=True)
class ServeFacts:
    """A command, read and completed.

    ``engine``: the options that were given, by the names of vLLM's ``EngineArgs``. ``draft``: the
    draft's model, the target itself for its own MTP layers; None without one. ``inputs``, ``plan``:
    the layers and the KV plan; None where only building the models tells.
    """

    engine: Mapping[str, Any] = field(hash=False)
    options: MkvConfig
    target: ModelFacts
    device: DeviceFacts
    speculation: SpeculationFacts | None = None
    draft: ModelFacts | None = None
    inputs: PlanInputs | None = None
    plan: ServingPlan | None = None
    layers: tuple[NamedLayer, ...] = ()
    """The layers, where numbers tell them and something else keeps them from being planned."""
    kept_block: int | None = None
    """Tokens of a block at whose end states of the target are kept for prefix hits, where a step
    cannot end within it; None: there are none, or it can."""
    groups_beside_transfer: int | None = None
    """KV groups, where only KV transfer keeps the caches from being planned from numbers."""
    weight_bytes: int = 0
    """Bytes of the files of weights of both models, as far as they are there."""
    rules: HostRules | None = None
    """Of the host that would run the command; None where vLLM has made a configuration on it."""
    runner: str = "v1"
    """vLLM's model runner, of the adapter's ``RUNNERS``."""
    loads_weights: bool = False
    """Whether an engine starts next; else the files of weights need not be there."""

    def whole(self, name: str, default: int) -> int:
        """A whole number of the command."""
        value = self.engine.get(name)
        return value if type(value) is int else default

    def ascend(self, name: str) -> Any:
        """An option of vllm-ascend in ``--additional-config``; None where it is not given."""
        additional = self.engine.get("additional_config")
        return additional.get(name) if isinstance(additional, Mapping) else None

    @property
    def for_training(self) -> Mapping[str, Any]:
        """``rl_config`` of vllm-ascend, empty where it is not there or not on."""
        given = self.ascend("rl_config")
        known = self.rules is not None and self.rules.has_rl_config
        return given if known and isinstance(given, Mapping) and given.get("enabled") else {}

    @property
    def nz_mode(self) -> Any:
        """``weight_nz_mode`` of vllm-ascend, 1 where nothing says it."""
        if self.for_training:
            return 0
        given = self.ascend(NZ_MODE)
        return 1 if given is None else given

    @property
    def tensor_parallel(self) -> int:
        """Ranks of one copy of the target, without pipeline stages."""
        return self.whole("tensor_parallel_size", 1)

    @property
    def groups(self) -> int | None:
        """KV groups of both models; None where only building the models tells."""
        return self.groups_beside_transfer if self.plan is None else len(self.plan.grouping.groups)

    @property
    def devices_needed(self) -> int:
        """Devices that the command takes on this machine."""
        outside = ("data_parallel_rank", "data_parallel_external_lb", "data_parallel_hybrid_lb")
        spread = any(self.engine.get(name) not in (None, False) for name in outside)
        everywhere = 1 if spread else self.whole("data_parallel_size", 1)
        copies = self.whole("data_parallel_size_local", everywhere)
        ranks = self.tensor_parallel * self.whole("pipeline_parallel_size", 1)
        ranks *= self.whole("prefill_context_parallel_size", 1)
        return copies * -(-ranks // max(1, self.whole("nnodes", 1)))

    @property
    def context_parallel(self) -> int:
        """Ranks over which a sequence is spread."""
        return self.whole("prefill_context_parallel_size", 1) * self.whole(
            "decode_context_parallel_size", 1
        )

    @property
    def splits_vocabulary(self) -> bool:
        """Whether ranks split the vocabulary of sampling."""
        return split_vocabulary(self.engine.get("additional_config"))

    @property
    def max_model_len(self) -> int:
        """Tokens of the longest request, 0 where neither command nor model say it."""
        asked = self.whole("max_model_len", -1)
        return asked if asked > 0 else self.target.number("max_position_embeddings") or 0

    @property
    def fits_length_to_memory(self) -> bool:
        """Whether vLLM shortens the longest request until memory holds it (-1, or ``auto``)."""
        return self.engine.get("max_model_len") == -1

    @property
    def takes_block_size(self) -> bool:
        """Whether ``--block-size`` has an effect."""
        target = self.target
        if target.is_compressed:
            return self.whole("block_size", 0) in compressed_layers.BLOCKS
        return takes_asked_size(self.engine, target.attends_beside_states)

    @property
    def caches_have_the_models_dtype(self) -> bool:
        """Whether the host keeps keys and values in the model's dtype, whatever is asked for."""
        rules = self.rules
        return rules is not None and rules.indexer_sets_cache_dtype and self.target.has_indexer

    @property
    def dtype(self) -> str:
        """Dtype of both models: vLLM runs a model of float32 in half precision by itself."""
        names = {"half": "float16", "float": "float32"}
        asked = str(self.engine.get("dtype") or "auto").removeprefix("torch.")
        if asked != "auto":
            return names.get(asked, asked)
        return "bfloat16" if self.target.dtype == "float32" else self.target.dtype

    @property
    def graph_mode(self) -> str:
        """The mode of the target's graphs, in capital letters."""
        return graph_modes.graph_mode(self.engine, self.rules)

    @property
    def is_compiled(self) -> bool:
        """Whether vLLM compiles the target, where it runs in graphs."""
        return graph_modes.compilation_mode(self.engine) == graph_modes.COMPILED

    @property
    def has_full_graphs(self) -> bool:
        """Whether attention runs inside graphs."""
        return self.graph_mode.startswith("FULL")

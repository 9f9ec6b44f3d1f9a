# SPDX-License-Identifier: Apache-2.0
"""How model runner V2 loads a draft, and output matrices of its own."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from vllm.compilation.backends import set_model_tag
from vllm.config import VllmConfig
from vllm.config.utils import replace
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead
from vllm.model_executor.model_loader import get_model
from vllm.model_executor.model_loader.utils import get_model_architecture
from vllm.v1.worker.gpu.spec_decode.dflash.utils import load_dflash_model
from vllm.v1.worker.gpu.spec_decode.eagle.utils import load_eagle_model
from vllm.v1.worker.gpu.spec_decode.utils import get_pp_safe_draft_load_config

from mkv_ascend.adapters.common import pipeline, weights
from mkv_ascend.adapters.common.attention.building import ModelBeingBuilt, building
from mkv_ascend.adapters.common.attention.rope_tables import RopeTables
from mkv_ascend.adapters.common.drafting.draft_building import (
    leave_out_padding,
    loading_padded_vocabulary,
)
from mkv_ascend.adapters.common.drafting.draft_config import (
    builder_config,
    load_options_of_draft,
    preserve_ascend_config,
)
from mkv_ascend.adapters.common.drafting.target_parts import named_parts
from mkv_ascend.adapters.patching import record, replaced
from mkv_ascend.adapters.vllm_ascend_0_30.common.drafting.host import HOST
from mkv_ascend.adapters.vllm_ascend_0_30.v2.patches.stages import embeddings_left_out
from mkv_ascend.layout.kind import Role

if TYPE_CHECKING:
    from torch import nn
    from transformers import PretrainedConfig
    from vllm.config import ModelConfig


# Output matrices of a head's own, where its checkpoint has one that differs from the target's.

OWN_MATRIX = record(
    name="output matrix of an MTP layer's own in model runner V2",
    target="vllm.v1.worker.gpu.spec_decode.eagle.utils:load_eagle_model",
    reads=(
        "vllm.model_executor.model_loader.default_loader:DefaultModelLoader.load_weights",
        "vllm.model_executor.model_loader.utils:initialize_model",
        "vllm_ascend.spec_decode.llm_base_proposer:AscendSpecDecodeBaseProposer._maybe_share_lm_head",
    ),
)


@contextlib.contextmanager
def own_output_matrices(draft: ModelConfig) -> Iterator[Callable[[nn.Module], None]]:
    """Note output matrices of a draft that is loaded while the block runs.

    They are in its layers or beside them. Gives a function that puts those back that differ from
    what the draft has in their place.
    """
    loaded_class, _ = get_model_architecture(draft)
    load, own = loaded_class.load_weights, {}

    def load_and_note(
        model: nn.Module, weights: Iterable[tuple[str, torch.Tensor]]
    ) -> set[str] | None:
        loaded: set[str] | None = load(model, weights)
        # Heads of eagle and eagle3 say nothing: vLLM compares their matrices itself.
        told = loaded or set()
        for name, module in model.named_modules():
            # Without one in the checkpoint, it is memory that nobody wrote.
            if isinstance(module, ParallelLMHead) and f"{name}.weight" in told:
                own[name] = module
        return loaded

    def put_back(model: nn.Module) -> None:
        for name, matrix in own.items():
            if not are_equal(matrix, model.get_submodule(name)):
                model.set_submodule(name, matrix)

    with replaced(loaded_class, "load_weights", load_and_note):
        yield put_back


def are_equal(one: nn.Module, other: nn.Module) -> bool:
    """Whether two modules compute the same: they are one, or all of their parameters are equal."""
    if one is other:
        return True
    mine, theirs = dict(one.named_parameters()), dict(other.named_parameters())
    return mine.keys() == theirs.keys() and all(
        mine[name].dtype == theirs[name].dtype and torch.equal(mine[name], theirs[name])
        for name in mine
    )


# Loads a draft for model runner V2: a model of its own, or a head on the target's states.

DRAFT_MODEL = "draft_model"
"""The method of drafts that are models of their own; vLLM's prefix of their layers, too."""
DFLASH = "dflash"


def make_draft_config(target: VllmConfig) -> VllmConfig:
    """vLLM's configuration of a draft, as its proposers of model runner V1 make it."""
    speculative = target.speculative_config
    config = replace(
        target,
        attention_config=replace(target.attention_config, backend=speculative.attention_backend),
        # Asked here, because there is one pipeline stage where the draft is built.
        load_config=get_pp_safe_draft_load_config(load_options_of_draft(target)),
    )
    if speculative.kv_cache_dtype is not None:
        cache = replace(config.cache_config, cache_dtype=speculative.kv_cache_dtype)
        config = replace(config, cache_config=cache)
    if speculative.method != DRAFT_MODEL:
        # MLA of vllm-ascend knows a draft's layers by the runner's type.
        config = copy.copy(config)
        config.model_config = copy.copy(config.model_config)
        config.model_config.runner_type = speculative.draft_model_config.runner_type
        if speculative.use_step3p5_mtp():
            drafting = speculative.draft_model_config.hf_config
            config.model_config.hf_config = with_kinds_of_all_layers(drafting)
        return config
    return replace(
        config,
        quant_config=None,
        parallel_config=replace(
            speculative.draft_parallel_config, rank=target.parallel_config.rank
        ),
        model_config=speculative.draft_model_config,
    )


def with_kinds_of_all_layers(config: PretrainedConfig) -> PretrainedConfig:
    """A copy of Step-3.5's configuration whose list of kinds reaches the last drafting layer.

    vLLM cuts it behind the target's layers, and the drafting layer then asks for its own kind. All
    of them have a window; vllm-ascend's proposer of model runner V1 says so in the same place.
    """
    whole = copy.copy(config)
    kinds, layers = config.layer_types, config.num_hidden_layers + config.num_nextn_predict_layers
    if kinds is not None:
        whole.layer_types = [*kinds, *["sliding_attention"] * (layers - len(kinds))]
    return whole


def load_draft(target: nn.Module, config: VllmConfig, *, replicated: bool) -> nn.Module:
    """Build the draft from ``config``, its own, with its own rotary tables; whole on this stage.

    ``replicated``: whether each rank keeps all of its keys, where ranks share the target's.
    """
    being_built = ModelBeingBuilt(
        Role.DRAFT, builder_config(config), RopeTables(), replicated=replicated
    )
    with (
        preserve_ascend_config(),
        embeddings_left_out(),
        named_parts(target),
        pipeline.whole(),
        HOST.building() as built,
        building(being_built),
        weights.noted(),
        loading_padded_vocabulary(config.speculative_config.draft_model_config),
    ):
        if config.speculative_config.method == DRAFT_MODEL:
            with set_model_tag(DRAFT_MODEL):
                model = get_model(vllm_config=config, prefix=DRAFT_MODEL)
        elif config.speculative_config.method == DFLASH:
            model = load_dflash_model(target, config)
        else:
            with own_output_matrices(config.speculative_config.draft_model_config) as put_back:
                model = load_eagle_model(target, config)
            put_back(model)
    built(model)
    leave_out_padding(model, config.speculative_config.draft_model_config)
    return model


def keep_all_keys_beside_shares(layers: Iterable[Any]) -> None:
    """Let these layers pass vLLM's question whether attention takes a rank's share of the keys.

    It is put to all layers. These have all keys on each rank, and no other one's part to merge.
    """
    for layer in layers:
        layer.impl.need_to_return_lse_for_decode = True
        layer.impl.supports_mtp_with_cp_non_trivial_interleave_size = True

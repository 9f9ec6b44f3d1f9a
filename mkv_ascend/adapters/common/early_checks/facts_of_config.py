# SPDX-License-Identifier: Apache-2.0
"""What checks judge of a draft, from the configuration that vLLM has made.

``mkv-ascend check`` and the front process of ``vllm serve`` have it from options and config.json
files (``checks/gathering.py``). A program that calls ``vllm.LLM`` has neither; both are judged by
the one list in ``checks/about_draft.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from mkv_ascend.adapters.common.attention import selection_inputs
from mkv_ascend.adapters.common.options import options_of
from mkv_ascend.checks.facts import DeviceFacts, ServeFacts, SpeculationFacts
from mkv_ascend.checks.model import ModelFacts
from mkv_ascend.layout.kind import Role

if TYPE_CHECKING:
    from vllm.config import ModelConfig, SpeculativeConfig, VllmConfig

SPREAD = ("tensor_parallel_size", "pipeline_parallel_size")
"""Numbers of ranks that checks of drafts read."""


def facts_of(config: VllmConfig) -> ServeFacts:
    """The facts of drafts; of memory, lengths and layers nothing is said."""
    speculative = config.speculative_config
    draft = None if speculative is None else speculative.draft_model_config
    environment = selection_inputs.environment(config)
    return ServeFacts(
        _engine(config),
        options_of(config),
        _model(config.model_config, Role.TARGET),
        DeviceFacts(None, None, environment.device_generation, "the devices of this process"),
        None if speculative is None else _speculation(speculative),
        None if draft is None else _model(draft, Role.DRAFT),
    )


def _engine(config: VllmConfig) -> dict[str, Any]:
    """The options, by the names of ``EngineArgs``."""
    # Not with this module: it needs torch.distributed.
    from vllm_ascend.utils import enable_sp

    found = {name: getattr(config.parallel_config, name) for name in SPREAD}
    transfer = config.kv_transfer_config
    if transfer is not None:
        found["kv_transfer_config"] = {"kv_role": transfer.kv_role}
    found["additional_config"] = {"enable_flashcomm1": enable_sp(config)}
    return found


def _speculation(speculative: SpeculativeConfig) -> SpeculationFacts:
    ranks = speculative.draft_parallel_config
    options = {
        "draft_tensor_parallel_size": None if ranks is None else ranks.tensor_parallel_size,
        "disable_padded_drafter_batch": speculative.disable_padded_drafter_batch,
        "parallel_drafting": speculative.parallel_drafting,
    }
    return SpeculationFacts(
        str(speculative.method), speculative.num_speculative_tokens or 0, options
    )


def _model(model: ModelConfig, role: Role) -> ModelFacts:
    return ModelFacts(role, model.model, _values(model.hf_config), _values(model.hf_text_config))


def _values(config: Any) -> Mapping[str, Any]:
    values: Mapping[str, Any] = config.to_dict()
    return values

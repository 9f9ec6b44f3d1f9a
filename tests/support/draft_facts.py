# SPDX-License-Identifier: Apache-2.0
"""Facts of a draft as a model runner gives them (``adapters/port.py``), for tests of parts."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from mkv_ascend.adapters.port import DraftFacts, LoadedDraft

K = 3


def facts(**changed: Any) -> DraftFacts:
    """Of a draft model of K = 3 for two requests on one rank; no engine runs it."""
    parallel = SimpleNamespace(data_parallel_size=1, pipeline_parallel_size=1)
    stand_ins: dict[str, Any] = {"vllm_config": SimpleNamespace(parallel_config=parallel)}
    plain: dict[str, Any] = {
        "method": "draft_model",
        "device": torch.device("cpu"),
        "num_speculative_tokens": K,
        "max_requests": 2,
        "max_tokens": 16,
        "new_rows": 1,
        "takes_states": False,
        "in_parallel": False,
        "mask_token_id": 0,
    }
    return DraftFacts(**{**stand_ins, **plain, **changed})


def loaded(model: Any = None, **changed: Any) -> LoadedDraft:
    """Such a draft, without layers."""
    own = facts(**changed)
    return LoadedDraft(own, model, own.vllm_config, {})

# SPDX-License-Identifier: Apache-2.0
"""The model that is being built; attention layers created meanwhile belong to it.

vLLM builds the target first and then the draft, with the same layer classes and into the same table
of layers. A layer's name does not reveal its model (an eagle head is ``model.layers.36``). So the
model is set while each is built.
"""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vllm.model_executor.layers import rotary_embedding

from mkv_ascend.adapters.patching import replaced
from mkv_ascend.layout.kind import Role

if TYPE_CHECKING:
    from vllm.config import VllmConfig

    from mkv_ascend.adapters.common.attention.rope_tables import RopeTables


@dataclass(frozen=True, eq=False)
class ModelBeingBuilt:
    """One model and what its layers' metadata builders must see.

    Attributes:
        role: target or draft.
        builder_config: the configuration for metadata builders of its layers, whatever their
            caller passes; None keeps the caller's (right for the target).
        rope_tables: rotary tables that are active while its builders work; None keeps the
            process's (right for the target).
        replicated: whether each rank keeps all keys of its layers, where ranks share those of the
            target's (``backends.on_each_rank``).
    """

    role: Role
    builder_config: VllmConfig | None = None
    rope_tables: RopeTables | None = None
    replicated: bool = False


TARGET = ModelBeingBuilt(Role.TARGET)

_model: contextvars.ContextVar[ModelBeingBuilt] = contextvars.ContextVar("model", default=TARGET)


def current_model() -> ModelBeingBuilt:
    """The model that is being built now; the target by default."""
    return _model.get()


@contextlib.contextmanager
def building(model: ModelBeingBuilt) -> Iterator[None]:
    """Assign attention layers that are created while the block runs to this model.

    Rotary modules and tables that are made meanwhile are this model's alone.
    """
    tables = contextlib.nullcontext() if model.rope_tables is None else model.rope_tables.active()
    token = _model.set(model)
    try:
        with tables, replaced(rotary_embedding, "_ROPE_DICT", {}):
            yield
        if model.rope_tables is not None:
            model.rope_tables.share_what_was_not_recorded()
    finally:
        _model.reset(token)

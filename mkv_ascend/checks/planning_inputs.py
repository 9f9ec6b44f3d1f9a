# SPDX-License-Identifier: Apache-2.0
"""What ``explain`` and ``check`` plan: what was asked for, and what the models were found to keep.

``from_config`` finds it in the numbers of two config.json files, ``from_vllm`` by having vLLM build
both models without weights. ``mkv_ascend.layout.planning.plan`` then plans as an engine does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mkv_ascend.layout.planning import PlanInputs
from mkv_ascend.layout.report import OtherGrouping

__all__ = ["Asked", "Found"]


@dataclass(frozen=True)
class Asked:
    """``engine``: fields of vLLM's ``EngineArgs`` as a user gives them; what lacks is the default.

    ``model`` is the directory of the target, ``speculative_config`` and ``additional_config`` are
    mappings.
    """

    engine: Mapping[str, Any]

    @property
    def model(self) -> Path:
        """Directory of the target."""
        return Path(str(self.engine["model"]))

    @property
    def speculative(self) -> Mapping[str, Any] | None:
        """The speculative configuration; None without a draft."""
        given: Mapping[str, Any] | None = self.engine.get("speculative_config")
        return given

    @property
    def additional(self) -> Mapping[str, Any]:
        """The additional configuration, empty where there is none."""
        given: Mapping[str, Any] = self.engine.get("additional_config") or {}
        return given

    def number(self, name: str, default: int) -> int:
        """A number of the engine's fields."""
        value = self.engine.get(name)
        return default if value is None else int(value)


@dataclass(frozen=True)
class Found:
    """``models``: role and description of each. ``notes``: what a reader should know.

    ``other``: vLLM's own grouping, None with the reason in ``other_absent``. ``padded_bytes``:
    bytes that vllm-ascend pads smaller pages to, which only its own grouping needs.
    """

    inputs: PlanInputs
    models: tuple[tuple[str, str], ...]
    notes: tuple[str, ...] = ()
    other: OtherGrouping | None = None
    other_absent: str = "it was not asked for"
    padded_bytes: int | None = None

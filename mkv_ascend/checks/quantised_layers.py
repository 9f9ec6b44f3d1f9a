# SPDX-License-Identifier: Apache-2.0
"""Layers whose keys and values are kept in 8 bits, as the description of their model says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from mkv_ascend.checks.config_file import ConfigFileError, read_config_file
from mkv_ascend.checks.model_layer import ExplainError, NamedLayer
from mkv_ascend.checks.weight_formats import WeightFormats, read_weight_formats
from mkv_ascend.layout.kind import Role

__all__ = ["as_quantised"]


def as_quantised(
    layers: Sequence[NamedLayer], target: Path, draft: Path | None
) -> list[NamedLayer]:
    """The layers of models in these folders, with the dtype that keys and values are kept in.

    Raises ExplainError where a description cannot be read.
    """
    formats = {
        Role.TARGET: _formats(target),
        Role.DRAFT: None if draft is None else _formats(draft),
    }
    return [_as_quantised(named, formats[named.role]) for named in layers]


def _formats(folder: Path) -> WeightFormats | None:
    try:
        return read_weight_formats(folder, read_config_file(folder))
    except ConfigFileError as error:
        raise ExplainError(str(error)) from error


def _as_quantised(named: NamedLayer, formats: WeightFormats | None) -> NamedLayer:
    layer = named.layer
    if formats is None or layer.vectors or layer.states or layer.compressed is not None:
        return named
    numbers = [part for part in named.name.split(".") if part.isdigit()]
    if not numbers or int(numbers[-1]) not in formats.int8_layers:
        return named
    return replace(named, cached_as="int8")

# SPDX-License-Identifier: Apache-2.0
"""What ``--hf-overrides`` changes of a target's configuration, before anything is judged.

vLLM writes the values over those of config.json, and an object over the fields of the same part
alone, such as ``text_config``. A draft keeps its own configuration, and so does a target's own
predictor but for rotary parameters: vLLM hands them no values, only functions
(``SpeculativeConfig``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from mkv_ascend.checks.config_file import check_values, text_part
from mkv_ascend.checks.model import ModelFacts

__all__ = ["overridden"]

OPTION = "--hf-overrides"


def overridden(target: ModelFacts, engine: Mapping[str, Any]) -> ModelFacts:
    """The target as the engine would see it.

    Raises:
        ConfigFileError: a value is one that no model has.
    """
    asked = engine.get("hf_overrides")
    if not isinstance(asked, Mapping) or not asked:
        return target
    values = _written_over(target.values, asked)
    check_values(values, f"{target.name}/config.json with {OPTION}")
    return replace(target, values=values, text=text_part(values))


def _written_over(values: Mapping[str, Any], asked: Mapping[str, Any]) -> dict[str, Any]:
    found = dict(values)
    for name, value in asked.items():
        part = values.get(name)
        if name.endswith("_config") and isinstance(part, Mapping) and isinstance(value, Mapping):
            found[name] = _written_over(part, value)
        else:
            found[name] = value
    return found

# SPDX-License-Identifier: Apache-2.0
"""Options of vLLM and vllm-ascend that environment variables set, too."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mkv_ascend.checks.graph_modes import compilation_of
from mkv_ascend.checks.host_rules import HostRules

__all__ = ["FLASHCOMM1", "NZ_MODE", "UNCOMPILED", "with_variables"]

FLASHCOMM1 = "VLLM_ASCEND_ENABLE_FLASHCOMM1"
"""Says the same as ``enable_flashcomm1`` of ``--additional-config``."""
OPTION = "enable_flashcomm1"
NZ_MODE = "weight_nz_mode"
"""Whether weights lie in the format FRACTAL_NZ: 0 never, 1 those that are quantised, 2 others, too.
On vllm-ascend 0.23.0 a variable says the same (``HostRules.nz_variable``)."""

UNCOMPILED = "TORCH_COMPILE_DISABLE"
"""torch's variable, which vLLM takes for mode 0 of ``--compilation-config``."""


def with_variables(
    engine: Mapping[str, Any], environment: Mapping[str, str], rules: HostRules
) -> Mapping[str, Any]:
    """The options of a command, with what a variable says as if an option had said it.

    Args:
        engine: by the names of vLLM's ``EngineArgs``.
        environment: of the command.
        rules: of the host that would run it.
    """
    if environment.get(UNCOMPILED) == "1":
        compilation = {**compilation_of(engine), "mode": 0}
        engine = {**engine, "compilation_config": compilation}
    given = engine.get("additional_config")
    additional = {} if given is None else given
    if not isinstance(additional, Mapping):
        return engine
    said: dict[str, Any] = {}
    if _is_on(environment.get(FLASHCOMM1, ""), rules):
        said[OPTION] = True
    nz_mode = environment.get(rules.nz_variable or "")
    # vllm-ascend ends with words of its own where this is no number.
    if nz_mode is not None and nz_mode.strip().isdecimal():
        said[NZ_MODE] = int(nz_mode)
    if not said:
        return engine
    both = {**said, **additional} if rules.options_beat_variables else {**additional, **said}
    return {**engine, "additional_config": both}


def _is_on(text: str, rules: HostRules) -> bool:
    """As the host reads it: one takes whole numbers and ends with others, one 1 and true."""
    if not rules.options_beat_variables:
        return text.strip().lower() in ("1", "true")
    try:
        return bool(int(text))
    except ValueError:
        return False

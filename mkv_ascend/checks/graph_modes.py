# SPDX-License-Identifier: Apache-2.0
"""vLLM's mode of graphs, as the options of a command and the host come to it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mkv_ascend.checks.host_rules import HostRules

__all__ = ["COMPILED", "compilation_mode", "compilation_of", "graph_mode"]

COMPILED = "VLLM_COMPILE"
MODES = ("NONE", "STOCK_TORCH_COMPILE", "DYNAMO_TRACE_ONCE", COMPILED)
"""Modes of compilation by their numbers (vLLM's ``CompilationMode``)."""
BY_LEVEL = {"0": "NONE", "1": "PIECEWISE"}
"""Modes of graphs of an optimization level, where others have FULL_AND_PIECEWISE."""
WITHOUT_PIECES = {"PIECEWISE": "NONE", "FULL_AND_PIECEWISE": "FULL_DECODE_ONLY"}
"""vLLM 0.30.0's ``CUDAGraphMode.without_piecewise``."""


def compilation_of(engine: Mapping[str, Any]) -> Mapping[str, Any]:
    """``--compilation-config``, empty where it is not given."""
    found = engine.get("compilation_config")
    return found if isinstance(found, Mapping) else {}


def graph_mode(engine: Mapping[str, Any], rules: HostRules | None) -> str:
    """The mode in capital letters; vLLM's own choice is FULL_AND_PIECEWISE.

    Compiling a model makes the pieces that are captured. Without them vLLM 0.23.0 captures nothing
    where pieces were asked for, 0.30.0 whole steps if they were asked for beside pieces.
    vllm-ascend 0.23.0 captures nothing in modes that it does not know.

    Args:
        engine: the options that were given, by the names of vLLM's ``EngineArgs``.
        rules: of the host; None where vLLM has made a configuration on it.
    """
    if engine.get("enforce_eager"):
        return "NONE"
    given = compilation_of(engine).get("cudagraph_mode")
    asked = str(given).rpartition(".")[2].upper()
    if given is None:
        asked = BY_LEVEL.get(_level(engine), "FULL_AND_PIECEWISE")
    how = compilation_mode(engine)
    if how == COMPILED:
        return asked
    if rules is not None and rules.whole_steps_uncompiled:
        return WITHOUT_PIECES.get(asked, asked)
    return "NONE" if asked in WITHOUT_PIECES or how != "NONE" else asked


def compilation_mode(engine: Mapping[str, Any]) -> str:
    """The mode of compilation: as asked for, or NONE of level 0 and VLLM_COMPILE of others."""
    given = compilation_of(engine).get("mode")
    if given is None:
        return "NONE" if _level(engine) == "0" else COMPILED
    if type(given) is int and 0 <= given < len(MODES):
        return MODES[given]
    return str(given).rpartition(".")[2].upper()


def _level(engine: Mapping[str, Any]) -> str:
    # vLLM's own enumeration of them spells O2.
    return str(engine.get("optimization_level", "2")).removeprefix("O")

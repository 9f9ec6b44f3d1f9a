# SPDX-License-Identifier: Apache-2.0
"""Graphs of the target that cannot be captured, or that no verify step can be replayed in."""

from __future__ import annotations

from collections.abc import Iterator

from mkv_ascend import host_versions
from mkv_ascend.layout.kind import Kind
from mkv_ascend.rules.facts import Facts
from mkv_ascend.rules.refusal import Refusal

POSSIBLE = "FULL_DECODE_ONLY, FULL_AND_PIECEWISE, PIECEWISE or NONE"


def whole_steps_uncompiled(facts: Facts) -> Iterator[Refusal]:
    """Whole steps of a model that is not compiled, on model runner V1.

    ``NPUModelRunner._use_aclgraph`` asks for a compiled one, and nothing else makes the table that
    captured launches are written into. On vllm-ascend 0.30.0rc2 only MLA writes into it.
    """
    target = facts.target
    if facts.runner != "v1" or not facts.has_full_graphs or facts.is_compiled:
        return
    if facts.host.whole_steps_uncompiled and (target.is_compressed or target.kind is not Kind.MLA):
        return
    yield Refusal(
        "graph-mode",
        f"the mode of graphs is {facts.graph_mode}, and the model is not compiled (mode of "
        "--compilation-config, --optimization-level 0 or TORCH_COMPILE_DISABLE): "
        f"{host_versions.vllm_ascend()} ends while it captures attention",
        "mode 3 of --compilation-config, the default, or no graphs",
        "leave what keeps it from being compiled out, or write --enforce-eager",
    )


def steps_of_windows(facts: Facts) -> Iterator[Refusal]:
    """Mode FULL for a target with windows, whose captured launches keep their block table.

    Graphs of this mode have as many rows as there may be requests. Where a step has fewer, or one
    more for the tokens that fill it up, vllm-ascend gives captured launches the lengths of the
    step's rows (``FIAParamProvider`` of attention/attention_v1.py), and its block table to layers
    without windows and sinks alone. The operator then refuses as many rows as were captured. Mode
    FULL becomes FULL_DECODE_ONLY beside MLA and recurrent layers.
    """
    target = facts.target
    if facts.speculation is None or facts.graph_mode != "FULL" or not target.has_windows:
        return
    if target.recurrent is not None or target.is_compressed or target.kind != Kind.FULL_ATTENTION:
        return
    yield Refusal(
        "graph-mode",
        f"cudagraph_mode of --compilation-config is FULL, and layers of {target.name} have sliding "
        "windows: graphs of this mode have rows for --max-num-seqs requests, and vllm-ascend tells "
        "these layers of no verify step that has another number of rows",
        POSSIBLE,
        "write FULL_DECODE_ONLY, or leave cudagraph_mode out",
    )


CHECKS = (whole_steps_uncompiled, steps_of_windows)

# SPDX-License-Identifier: Apache-2.0
"""Modes of graphs that no verify steps can be replayed in."""

from __future__ import annotations

from collections.abc import Iterator

from mkv_ascend.checks.facts import ServeFacts
from mkv_ascend.checks.refusal import Refusal
from mkv_ascend.layout.kind import Kind

__all__ = ["CHECKS"]

POSSIBLE = "FULL_DECODE_ONLY, FULL_AND_PIECEWISE, PIECEWISE or NONE"


def steps_of_windows(facts: ServeFacts) -> Iterator[Refusal]:
    """Mode FULL for a target with windows, whose captured launches keep their block table.

    Graphs of this mode have as many rows as there may be requests. Where a step has fewer, or one
    more for the tokens that fill it up, vllm-ascend gives captured launches the lengths of the
    step's rows (``FIAParamProvider`` of attention/attention_v1.py), and its block table to layers
    without windows and sinks alone. The operator then refuses as many rows as were captured. Mode
    FULL becomes FULL_DECODE_ONLY beside MLA and recurrent layers.
    """
    target, speculation = facts.target, facts.speculation
    if speculation is None or facts.graph_mode != "FULL" or not target.has_windows:
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


CHECKS = (steps_of_windows,)

# SPDX-License-Identifier: Apache-2.0
"""Graphs of the target that cannot be captured, with a draft or without."""

from __future__ import annotations

from collections.abc import Iterator

from mkv_ascend import host_versions
from mkv_ascend.checks.facts import ServeFacts
from mkv_ascend.checks.graph_modes import compilation_of
from mkv_ascend.checks.refusal import Refusal
from mkv_ascend.checks.variables import UNCOMPILED
from mkv_ascend.layout.kind import Kind

__all__ = ["CHECKS"]

MOST, SIZES = "max_cudagraph_capture_size", "cudagraph_capture_sizes"
SHORTEST_STEP = 2048
"""Tokens of a step that vLLM takes by itself, or more."""


def whole_steps_uncompiled(facts: ServeFacts) -> Iterator[Refusal]:
    """Whole steps of a model that is not compiled, on model runner V1.

    ``NPUModelRunner._use_aclgraph`` asks for a compiled one, and nothing else makes the table that
    captured launches are written into. On vllm-ascend 0.30.0rc2 only MLA writes into it.
    """
    rules, target = facts.rules, facts.target
    if rules is None or facts.runner != "v1" or not facts.has_full_graphs or facts.is_compiled:
        return
    if rules.whole_steps_uncompiled and (target.is_compressed or target.kind is not Kind.MLA):
        return
    yield Refusal(
        "graph-mode",
        f"the mode of graphs is {facts.graph_mode}, and the model is not compiled (mode of "
        f"--compilation-config, --optimization-level 0 or {UNCOMPILED}): "
        f"{host_versions.vllm_ascend()} ends while it captures attention",
        "mode 3 of --compilation-config, the default, or no graphs",
        "leave what keeps it from being compiled out, or write --enforce-eager",
    )


def sizes(facts: ServeFacts) -> Iterator[Refusal]:
    """Sizes of captures, and a largest one that is not the largest of them.

    vLLM leaves out sizes that a step does not reach, and compares then.
    """
    given = compilation_of(facts.engine)
    asked, most = given.get(SIZES), given.get(MOST)
    if facts.graph_mode == "NONE" or not isinstance(asked, list):
        return
    if not asked:
        yield _contradictory(f"{SIZES} of --compilation-config has no size", "one size or more")
        return
    if type(most) is not int or not all(type(size) is int for size in asked):
        return
    step = facts.whole("max_num_batched_tokens", 0)
    taken = [size for size in asked if size <= step] if step else asked
    largest = max(taken, default=0)
    # A step of vLLM's own choice may not reach the largest size.
    unknown = not step and most in asked and largest > SHORTEST_STEP
    if most != largest and not unknown:
        yield _contradictory(
            f"{MOST} of --compilation-config is {most}, and the largest of its {SIZES} that a step "
            f"reaches is {largest}",
            f"{largest}, or one of the two alone",
        )


def _contradictory(asked: str, possible: str) -> Refusal:
    return Refusal("capture-sizes", asked, possible, f"leave {MOST} out, or {SIZES}")


CHECKS = (whole_steps_uncompiled, sizes)

# SPDX-License-Identifier: Apache-2.0
"""Files of weights that are cut short, no safetensors files or, of a draft, not there.

What tensors the files of any class lack, the worker says when it has built the class
(``unfilled.py`` of the adapters), behind the loading of the target.
"""

from __future__ import annotations

from collections.abc import Iterator

from mkv_ascend.rules.facts import Facts
from mkv_ascend.rules.refusal import Refusal
from mkv_ascend.rules.weight_files import problems_of

READ_BY_TENSOR = frozenset({"auto", "hf", "safetensors"})
"""Values of ``--load-format`` with which vLLM reads safetensors files."""
MOST_NAMED = 5


def broken_files(facts: Facts) -> Iterator[Refusal]:
    """One refusal for each model with such files."""
    formats = (facts.load_format, facts.draft_load_format)
    for model, asked in zip(facts.models, formats, strict=False):
        problems = problems_of(model.name) if asked in READ_BY_TENSOR else ()
        if problems:
            yield Refusal(
                "weights",
                f"weights of the {model.role} {model.name}: {'; '.join(problems[:MOST_NAMED])}",
                "whole files, all that their index names",
                f"download {model.name} again",
            )


CHECKS = (broken_files,)

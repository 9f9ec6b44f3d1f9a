# SPDX-License-Identifier: Apache-2.0
"""Heads of multi-token prediction that lie in files of their own, made known to ``heads``."""

from __future__ import annotations

from tests.support.tiny_models import (
    heads_ernie,
    heads_exaone,
    heads_glm4,
    heads_glm4_lite,
    heads_mimo,
    heads_qwen3_5,
    heads_sparse,
)


def register() -> None:
    """Let heads of all families be built and loaded."""
    for family in (
        heads_sparse,
        heads_ernie,
        heads_exaone,
        heads_glm4,
        heads_glm4_lite,
        heads_mimo,
        heads_qwen3_5,
    ):
        family.register()

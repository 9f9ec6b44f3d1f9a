# SPDX-License-Identifier: Apache-2.0
"""Model classes of families that transformers does not have, each in a file of its own."""

from __future__ import annotations

from tests.support.tiny_models import deepseek_v32, kimi_linear


def register() -> None:
    """Let transformers' Auto classes know them. Once per process."""
    for family in (deepseek_v32, kimi_linear):
        family.register()

# SPDX-License-Identifier: Apache-2.0
"""Custom ops, ``torch.ops.mkv_ascend.*``: one file per op.

Each file holds the op's schema, a torch reference, its argument checks, and a function that calls
it. Importing such a file registers the op; importing this package imports nothing.
"""

from __future__ import annotations

from importlib import import_module

NAMES = ("draft_plan", "expand_inputs", "target_slots", "zero_blocks")
"""All ops; each is a module of this package with a function of that name."""


def load_all() -> None:
    """Register all ops."""
    for name in NAMES:
        import_module(f"{__name__}.{name}")

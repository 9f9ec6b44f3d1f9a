# SPDX-License-Identifier: Apache-2.0
"""The inventory of docs/patches.md: code replaced in place and in subclasses.

``python -m mkv_ascend.adapters.vllm_ascend_0_23.patches.inventory`` prints it.
"""

from __future__ import annotations

from mkv_ascend.adapters.vllm_ascend_0_23.patches.inventory_overridden import OVERRIDES
from mkv_ascend.adapters.vllm_ascend_0_23.patches.inventory_replaced import PATCHES, Patch


def markdown() -> str:
    """The inventory as Markdown, one section per entry."""
    parts = [
        "## Replaced in place",
        *map(_section, PATCHES),
        "## Replaced in subclasses",
        *map(_section, OVERRIDES),
    ]
    return "\n\n".join(parts)


def _section(patch: Patch) -> str:
    rows = [
        ("Replaces", patch.target),
        ("Why", patch.why),
        ("Guard", patch.guard),
        ("Test", f"`{patch.test}`"),
        *([("Fails in vllm-ascend's code", f"`{patch.stock}`")] if patch.stock else []),
        ("Can go when", patch.until),
    ]
    lines = [f"- **{title}**: {text}" for title, text in rows]
    return f"### {patch.name}\n\n" + "\n".join(lines)


if __name__ == "__main__":
    print(markdown())

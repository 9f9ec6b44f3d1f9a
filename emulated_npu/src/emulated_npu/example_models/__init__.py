# SPDX-License-Identifier: Apache-2.0
"""Two small trained models to serve on the emulated NPU, such as ``examples/demo`` does.

They tell short stories of a closed little world (``stories``), so their output reads as English and
anybody can judge it. The target is of DeepSeek-V2's kind (MLA, experts), the draft of Gemma 3's
(sliding windows and full attention). ``python -m tests.support.demo_models`` in a clone of
mkv_ascend trains them anew.
"""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).parent / "checkpoints"
TARGET, DRAFT = "story_target", "story_draft"
NAMES = (TARGET, DRAFT)


def example_model(name: str) -> Path:
    """Folder of the checkpoint ``name``, one of ``NAMES``."""
    if name not in NAMES:
        raise ValueError(f"{name!r} is no example model; there are {', '.join(NAMES)}")
    return FOLDER / name

# SPDX-License-Identifier: Apache-2.0
"""Our options in ``additional_config``, where vllm-ascend 0.30.0 allows only its own.

The record of what is replaced for it is that of our platform (``platform_slot.py``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mkv_ascend.adapters.patching import wrap

OURS = "mkv_ascend"
"""The key of our options; ``mkv_ascend.config`` checks what it holds."""


def accept() -> None:
    """Let vllm-ascend's configuration be made beside our key. Idempotent."""
    from pydantic.dataclasses import rebuild_dataclass
    from vllm_ascend.ascend_config import AscendConfig

    # Its __init__ is generated, so there is no source to name as a target; and once more at the
    # first use, if the class is not complete by then.
    rebuild_dataclass(AscendConfig, raise_errors=False)
    wrap(AscendConfig, "__init__", _without_ours)


def _without_ours(original: Callable[..., None], self: Any, *args: Any, **kwargs: Any) -> None:
    kwargs.pop(OURS, None)
    original(self, *args, **kwargs)

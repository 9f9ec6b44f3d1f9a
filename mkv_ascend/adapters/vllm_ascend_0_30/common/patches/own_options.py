# SPDX-License-Identifier: Apache-2.0
"""Our options in ``additional_config``, where vllm-ascend 0.30.0 allows only its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mkv_ascend.adapters.patching import record, wrap

OURS = "mkv_ascend"
"""The key of our options; ``mkv_ascend.config`` checks what it holds."""

OPTIONS = record(
    name="our options beside vllm-ascend's",
    target="vllm_ascend.ascend_config:AscendConfig",
    reads=("vllm_ascend.ascend_config:init_ascend_config",),
    writes=("__init__",),
    why="Every key of additional_config becomes an argument, and vllm-ascend refuses those that it "
    "does not know, ours too.",
    until="vllm-ascend leaves keys of other plugins alone",
    test="tests/emulated/models/test_backend_choice.py",
)


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

# SPDX-License-Identifier: Apache-2.0
"""npugraph_ex.configs.compiler_config: how options reach a CompilerConfig."""

from __future__ import annotations

from typing import Any


def _process_kwargs_options(config: Any, kwargs: dict[str, Any]) -> None:
    """Set each of ``kwargs["options"]`` on ``config``."""
    for name, value in kwargs.get("options", {}).items():
        setattr(config, name, value)

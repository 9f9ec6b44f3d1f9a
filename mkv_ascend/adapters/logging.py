# SPDX-License-Identifier: Apache-2.0
"""Loggers of the plugin, under vLLM's own.

vLLM configures the logger ``vllm`` only; a logger outside that name prints nothing below the
level WARNING, whatever ``VLLM_LOGGING_LEVEL`` says.
"""

from __future__ import annotations

from typing import cast

from vllm.logger import _VllmLogger, init_logger


def get_logger(module_name: str) -> _VllmLogger:
    """A logger that follows vLLM's level and format.

    Args:
        module_name: the caller's ``__name__``.
    """
    return cast("_VllmLogger", init_logger(f"vllm.{module_name}"))

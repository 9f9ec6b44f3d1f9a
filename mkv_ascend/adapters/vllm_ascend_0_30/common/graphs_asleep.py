# SPDX-License-Identifier: Apache-2.0
"""Whether sleep mode drops captured graphs on vllm-ascend 0.30.0rc2."""

from __future__ import annotations

from vllm_ascend.ascend_config import get_ascend_config


def graphs_sleep() -> bool:
    """Whether it drops them, to capture them anew at its end."""
    options = get_ascend_config().rl_config
    return bool(options.enabled and options.sleep_mode_extra_cleanup)

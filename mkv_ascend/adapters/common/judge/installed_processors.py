# SPDX-License-Identifier: Apache-2.0
"""Logits processors that an installed package brings (entry points of vLLM's group).

Without drafts model runner V1 calls them in each step. Beside any speculation vLLM loads none, and
says nothing. Those that a command names are refused (``rules/draft_options.py``); a
package may be there for another server, so it is only told.
"""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import TYPE_CHECKING

from mkv_ascend.adapters.logging import get_logger

if TYPE_CHECKING:
    from vllm.config import VllmConfig

GROUP = "vllm.logits_processors"

logger = get_logger(__name__)


def say_what_is_left_out(config: VllmConfig) -> None:
    """Warn of processors that are not called because there is a draft; V2 refuses them itself."""
    if config.speculative_config is None or getattr(config, "use_v2_model_runner", False):
        return
    names = sorted(point.name for point in entry_points(group=GROUP))
    if names:
        logger.warning(
            "Logits processors of installed packages are left out beside a draft: %s",
            ", ".join(names),
        )

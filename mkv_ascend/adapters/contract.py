# SPDX-License-Identifier: Apache-2.0
"""What an adapter offers to the rooms above it."""

from __future__ import annotations

from typing import Protocol


class HostAdapter(Protocol):
    """The module ``host`` of an adapter. Importing it imports nothing of the host."""

    @property
    def PLATFORM(self) -> str:  # noqa: N802 - a constant of the module
        """Qualified name of the platform class for vLLM."""

    def start_process(self) -> None:
        """What every process of vLLM needs first; called by the general plugin."""

# SPDX-License-Identifier: Apache-2.0
"""What an adapter offers to the packages above it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from mkv_ascend.checks.host_rules import HostRules


class HostAdapter(Protocol):
    """The module ``host`` of an adapter. It imports nothing of the host when it is imported."""

    @property
    def PLATFORM(self) -> str:  # noqa: N802 - a constant of the module
        """Qualified name of the platform class for vLLM."""

    @property
    def PACKAGE(self) -> str:  # noqa: N802
        """Qualified name of the package that answers questions of commands.

        Its modules ``explain.vllm_groups`` and ``explain.vllm_building`` do so, each in a process
        of its own (``questions.py``).
        """

    @property
    def WORKER(self) -> str:  # noqa: N802
        """Qualified name of the worker class with the host's own model runner."""

    @property
    def VERSIONS(self) -> Mapping[str, tuple[str, ...]]:  # noqa: N802
        """Distribution -> the versions that the adapter serves, earliest first."""

    @property
    def FINGERPRINTS(self) -> Path:  # noqa: N802
        """The file with fingerprints of the code that is replaced (``fingerprints.py``)."""

    @property
    def RULES(self) -> HostRules:  # noqa: N802
        """What checks, and plans from numbers, must know of the host."""

    @property
    def RUNNERS(self) -> tuple[str, ...]:  # noqa: N802
        """vLLM's model runners on which the adapter serves drafts, the host's own first."""

    def start_process(self) -> None:
        """Prepare a process of vLLM. The general plugin calls this first in every process."""

# SPDX-License-Identifier: Apache-2.0
"""What an adapter offers to the packages above it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Protocol

from mkv_ascend.rules.facts import HostRules

if TYPE_CHECKING:
    from vllm.config import VllmConfig

    from mkv_ascend.adapters.common.runner_host import RunnerHost
    from mkv_ascend.adapters.patching import Patch

PLATFORM = "mkv_ascend.adapters.common.platform.MkvPlatform"
"""Qualified name of our platform's class for vLLM."""
WORKER = "mkv_ascend.adapters.common.worker.MkvWorker"
"""Qualified name of the class of our workers."""


class HostAdapter(Protocol):
    """The module ``host`` of an adapter. It imports nothing of the host when it is imported.

    vLLM's platform, worker and model runner V1 are one class each of ours for all hosts
    (``common/``). What a host does there in its own way, they ask of this.
    """

    @property
    def PACKAGE(self) -> str:  # noqa: N802 - a constant of the module
        """Qualified name of the package that answers questions of commands.

        Its module ``judge`` does so, in a process of its own (``questions.py``).
        """

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

    def accept_options(self) -> None:
        """Let vllm-ascend take our options. Each process calls this with its platform, before it
        makes a configuration. Idempotent."""

    def start_process(self) -> None:
        """Prepare a process of vLLM. The general plugin calls this first in every process."""

    def why_not_served(self, config: VllmConfig) -> str | None:
        """What of a configuration this adapter cannot serve, and what to change."""

    def patches_of_the_front(self) -> Iterable[Patch]:
        """Patches of this host alone for the process that reads the command."""

    def patches_of_the_engine_core(self, config: VllmConfig) -> Iterable[Patch]:
        """Patches of this host alone for the process that groups layers and schedules."""

    def patch_worker(self) -> None:
        """Apply what a worker process needs before a model is built."""

    def model_runner(self, config: VllmConfig) -> tuple[ModuleType, type[Any]]:
        """The module from which vllm-ascend's worker takes ``NPUModelRunner``, and our class.

        What the model runner needs before a model is built is applied.
        """

    def runner_host(self) -> RunnerHost:
        """What the host does in its own way in model runner V1."""

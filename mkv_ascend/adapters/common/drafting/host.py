# SPDX-License-Identifier: Apache-2.0
"""What differs between hosts where drafts are run. The adapter of a host gives it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from torch import nn
    from vllm.config import VllmConfig

    from mkv_ascend.adapters.common.backends.port import Backend
    from mkv_ascend.adapters.common.drafting.draft import AscendDraft
    from mkv_ascend.adapters.common.drafting.families import Family
    from mkv_ascend.adapters.common.drafting.launches import CapturedGraphParams, Layers
    from mkv_ascend.adapters.common.drafting.pass_context import PassContext
    from mkv_ascend.drafting.context_shares import ContextShares


class LaunchUpdates(Protocol):
    """Gives the captured launches of a graph their lengths; false if there are no such launches."""

    def __bool__(self) -> bool: ...

    def run(self, stream: Any, context: Any, config: Any, lengths: Sequence[list[int]]) -> None:
        """Give all launches their lengths, and let the replay continue.

        Args:
            stream: the stream on which tasks are updated.
            context: the forward context of the capture, which is the current one.
            config: vLLM's configuration.
            lengths: for each pass, a length for each request.

        Raises:
            ValueError: the number of passes differs from the graph's.
        """


@dataclass(frozen=True)
class OwnMethod:
    """A method of drafting that one host alone has: our proposer, and what its strategy needs."""

    proposer: type[Any]
    family: Callable[[], Family]


class DraftHost(Protocol):
    """The parts of drafting that one host does in its own way."""

    @property
    def draft(self) -> type[AscendDraft]:
        """The class of drafts, except those of mask tokens."""

    @property
    def passes(self) -> PassContext:
        """In what passes run."""

    @property
    def own_methods(self) -> Mapping[str, OwnMethod]:
        """Methods that we serve on this host alone, by vLLM's names."""

    @property
    def names_experts(self) -> bool:
        """Whether the check of a draft's configuration asks for ranks of the target's experts."""

    def keeps_proposer(self, method: str, config: VllmConfig) -> bool:
        """Whether a draft of one of our methods is left to the host's own proposer."""

    def plans_shares(self, config: VllmConfig) -> bool:
        """Whether our proposal serves this draft where ranks share each sequence's keys."""

    def shares_of(self, runner: Any) -> ContextShares | None:
        """How ranks share each sequence's keys; None if each rank keeps all of them."""

    @property
    def captures_shares(self) -> bool:
        """Whether graphs hold a draft's passes where ranks share each sequence's keys."""

    def splits_vocabulary(self) -> bool:
        """Whether other ranks split the vocabulary of sampling."""

    def building(self) -> AbstractContextManager[Callable[[nn.Module], None]]:
        """Keep the target's process-wide state while a draft is built.

        Gives a function that is called with the built draft afterwards.
        """

    def run_without_keys(self, model: nn.Module, layers: Iterable[Any]) -> None:
        """Let a draft's layers write no keys and rotate queries alone.

        Their ``kv_sharing_target_layer_name`` was just set.
        """

    def backend_of(self, builder: Any, spec: Any, **of_draft: Any) -> Backend:
        """What makes the metadata of a group; for the arguments see ``Backend``."""

    def new_graph(self) -> Any:
        """A device graph for a capture."""

    def updates(
        self,
        graph: Any,
        table: CapturedGraphParams,
        layers: Layers,
        metadata: Sequence[Mapping[str, Any]],
    ) -> LaunchUpdates:
        """How the launches of a capture that has ended are updated.

        Args:
            graph: the graph of the capture, from ``new_graph``.
            table: what implementations noted outside of the graph.
            layers: layers of the draft whose launches are updated, in the order of execution.
            metadata: metadata of each pass, by layer.
        """

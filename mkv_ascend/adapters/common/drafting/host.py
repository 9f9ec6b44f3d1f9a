# SPDX-License-Identifier: Apache-2.0
"""What differs between hosts where drafts are run. The adapter of a host gives it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

from mkv_ascend.adapters.common.backends.port import Backend
from mkv_ascend.adapters.common.backends.table import BACKENDS, Backends, backend_of
from mkv_ascend.adapters.common.drafting.draft import AscendDraft
from mkv_ascend.adapters.common.drafting.kinds_of_drafts import is_sparse

if TYPE_CHECKING:
    from torch import nn
    from vllm.config import VllmConfig

    from mkv_ascend.adapters.common.drafting.launches import CapturedGraphParams, Layers
    from mkv_ascend.adapters.common.drafting.strategies import HostStrategy
    from mkv_ascend.adapters.port import DraftFacts


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


class OwnMethod(NamedTuple):
    """A method of drafting that one host alone has: our proposer, and the class of its strategy."""

    proposer: type[Any]
    kind: type[HostStrategy]


class DraftHost:
    """The parts of drafting that one host does in its own way.

    ``own_methods``: methods that we serve on this host alone, by vLLM's names. ``names_experts``:
    whether the check of a draft's configuration asks for ranks of the target's experts.
    ``captures_shares``: whether graphs hold a draft's passes where ranks share each sequence's
    keys. ``backends``: of all layers.
    """

    own_methods: ClassVar[Mapping[str, OwnMethod]] = {}
    names_experts = False
    captures_shares = True
    backends: ClassVar[Backends] = BACKENDS

    def keeps_proposer(self, method: str, config: VllmConfig) -> bool:
        """Whether a draft of one of our methods is left to the host's own proposer."""
        return False

    def plans_shares(self, config: VllmConfig) -> bool:
        """Whether our proposal serves this draft where ranks share each sequence's keys.

        Sparse MLA lays out keys and chosen keys in its own way.
        """
        draft = config.speculative_config.draft_model_config
        alone = config.parallel_config.prefill_context_parallel_size == 1
        return alone and not is_sparse(draft.hf_text_config)

    def draft_class(self, facts: DraftFacts) -> type[AscendDraft]:
        """Of drafts in model runner V1, except those of mask tokens."""
        return AscendDraft

    def building(self) -> AbstractContextManager[Callable[[nn.Module], None]]:
        """Keep the target's process-wide state while a draft is built.

        Gives a function that is called with the built draft afterwards.
        """
        raise NotImplementedError

    def run_without_keys(self, model: nn.Module, layers: Iterable[Any]) -> None:
        """Let a draft's layers write no keys and rotate queries alone.

        Their ``kv_sharing_target_layer_name`` was just set. Nothing by default: vLLM 0.30.0's head
        has no keys, and vllm-ascend takes none.
        """

    def backend_of(self, builder: Any, spec: Any, **of_draft: Any) -> Backend:
        """What makes the metadata of a group; for the arguments see ``Backend``."""
        return backend_of(self.backends, builder, spec, **of_draft)

    def new_graph(self) -> Any:
        """A device graph for a capture."""
        raise NotImplementedError

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
        raise NotImplementedError

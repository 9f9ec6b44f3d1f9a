# SPDX-License-Identifier: Apache-2.0
"""Captured launches of attention: what each backend's implementation notes and is updated with.

An implementation of vllm-ascend that takes lengths on the host captures each launch as a task that
waits for an event, and notes event, task and operands by the number of tokens. Later its
``update_graph_params`` hands the task the lengths that it finds in metadata.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from vllm_ascend.attention.attention_v1 import AscendAttentionBackendImpl
from vllm_ascend.attention.mla_v1 import AscendMLAImpl
from vllm_ascend.attention.sfa_v1 import AscendSFAImpl
from vllm_ascend.compilation import acl_graph

from mkv_ascend.drafting.copying import shallow_copy
from mkv_ascend.drafting.sharing import sharing_of


class LaunchKind(Protocol):
    """What differs by the class of implementation.

    ``is_updated``: whether lengths are handed to it on the host, so that a replay must be given
    this proposal's. Otherwise it reads them on the device, where the plan writes them.
    """

    is_updated: bool

    def why_not(self, queries: int, builder: Any) -> str | None:
        """Why passes of so many queries for each request are not captured; None: they are."""

    def tokens(self, metadata: Any) -> int:
        """Queries of a pass with this metadata: what the implementation notes its launch by."""

    def with_lengths(self, metadata: Any, lengths: list[int]) -> Any:
        """A copy of ``metadata`` with these lengths, one for each request."""

    def has_sinks(self, implementation: Any) -> bool:
        """Whether the launch is of the operator that takes sinks."""


class DenseLaunch:
    """fused_infer_attention: any number of queries for each request."""

    is_updated = True

    def why_not(self, queries: int, builder: Any) -> str | None:
        return None

    def tokens(self, metadata: Any) -> int:
        tokens: int = metadata.actual_seq_lengths_q[-1]
        return tokens

    def with_lengths(self, metadata: Any, lengths: list[int]) -> Any:
        given = shallow_copy(metadata)
        given.seq_lens_list = lengths
        return given

    def has_sinks(self, implementation: Any) -> bool:
        return implementation.sinks is not None


class LatentLaunch:
    """MLA: what its builder takes for decodes; prefills are launched without a task."""

    is_updated = True

    def why_not(self, queries: int, builder: Any) -> str | None:
        most = builder.decode_threshold
        if queries <= most:
            return None
        return f"a request's {queries} tokens are a prefill to MLA, whose decodes have {most}"

    def tokens(self, metadata: Any) -> int:
        tokens: int = metadata.decode.actual_seq_lengths_q[-1]
        return tokens

    def with_lengths(self, metadata: Any, lengths: list[int]) -> Any:
        given = shallow_copy(metadata)
        given.decode = shallow_copy(metadata.decode)
        given.decode.seq_lens_list = lengths
        return given

    def has_sinks(self, implementation: Any) -> bool:
        return False


class SparseLaunch:
    """Sparse MLA: nothing of it is on the host."""

    is_updated = False

    def why_not(self, queries: int, builder: Any) -> str | None:
        if sharing_of(builder) is None:
            return "its rows are split over ranks, or its slots sorted, for each pass anew"
        return None

    def tokens(self, metadata: Any) -> int:
        raise NotImplementedError("launches of sparse attention are not updated")

    def with_lengths(self, metadata: Any, lengths: list[int]) -> Any:
        raise NotImplementedError("launches of sparse attention are not updated")

    def has_sinks(self, implementation: Any) -> bool:
        return False


LAUNCH_KINDS: dict[type[Any], LaunchKind] = {
    AscendAttentionBackendImpl: DenseLaunch(),
    AscendMLAImpl: LatentLaunch(),
    AscendSFAImpl: SparseLaunch(),
}
"""Implementation class -> its kind of launches, subclasses included."""


def launch_kind(implementation: type[Any]) -> LaunchKind | None:
    """The kind of launches of this implementation class; None where they are not captured."""
    for base in implementation.__mro__:
        if base in LAUNCH_KINDS:
            return LAUNCH_KINDS[base]
    return None


def is_updated(implementation: Any) -> bool:
    """Whether a replay hands this layer's launches its lengths."""
    kind = launch_kind(type(implementation))
    assert kind is not None, "layers were asked for their kind before the capture"
    return kind.is_updated


@dataclass(frozen=True)
class CapturedLaunch:
    """One launch of attention in a graph.

    Attributes:
        implementation: of its layer.
        kind: of its implementation.
        layer: its name.
        metadata: that it was captured with.
        tokens: of its pass.
        event, handle, operands, workspace: what vllm-ascend notes of it for updates.
    """

    implementation: Any
    kind: LaunchKind
    layer: str
    metadata: Any
    tokens: int
    event: Any
    handle: Any
    operands: Any
    workspace: torch.Tensor

    def updated_with(self) -> tuple[Callable[..., None], bool, int]:
        """What launches have in common that one call can update: the function, whether it is for
        the operator that takes sinks, and the number of tokens."""
        update = self.implementation.update_graph_params
        return update, self.kind.has_sinks(self.implementation), self.tokens


class LargestWorkspaces(dict[int, torch.Tensor]):
    """The largest workspace of all launches with a number of tokens.

    vllm-ascend asks for the first launch's and takes it for the others, whatever those need.
    """

    def get(self, tokens: int, default: Any = None) -> Any:
        """None: each launch asks what it needs."""
        return default

    def __setitem__(self, tokens: int, workspace: torch.Tensor) -> None:
        """Keep the larger one."""
        if tokens not in self or workspace.nbytes > self[tokens].nbytes:
            super().__setitem__(tokens, workspace)


class OneTable:
    """What implementations note in one capture, in the order in which they do."""

    def __init__(self) -> None:
        noted: tuple[list[Any], list[Any], list[Any]] = ([], [], [])
        self.events, self.handles, self.parameters = noted
        self._workspaces = LargestWorkspaces()

    def in_use(self) -> Any:
        """While inside, implementations note their launches of a draft here."""
        return use(
            acl_graph.GraphParams(
                defaultdict(lambda: self.events),
                self._workspaces,
                defaultdict(lambda: self.handles),
                defaultdict(lambda: self.parameters),
            )
        )

    def launches(
        self, names: Sequence[str], metadata: Sequence[Any], layers: dict[str, Any]
    ) -> tuple[tuple[CapturedLaunch, ...], ...]:
        """What was noted, sorted by pass.

        Args:
            names: of the draft's layers whose launches are updated, in the order in which they run.
            metadata: of each pass, by layer.

        Raises:
            RuntimeError: the capture noted another number of launches.
        """
        noted = iter(zip(self.events, self.handles, self.parameters, strict=True))
        expected = len(names) * len(metadata)
        if len(self.events) != expected:
            raise RuntimeError(
                f"{len(self.events)} launches of attention were captured, not {expected}: of "
                f"{len(names)} layers in {len(metadata)} passes"
            )
        steps = []
        for of_step in metadata:
            launches = []
            for name in names:
                event, handle, parameters = next(noted)
                implementation = layers[name].impl
                kind = launch_kind(type(implementation))
                assert kind is not None, "layers were asked for their kind before the capture"
                tokens = kind.tokens(of_step[name])
                noted_of_it = (event, handle, parameters, self._workspaces[tokens])
                launches.append(
                    CapturedLaunch(implementation, kind, name, of_step[name], tokens, *noted_of_it)
                )
            steps.append(tuple(launches))
        return tuple(steps)


@contextmanager
def use(table: acl_graph.GraphParams) -> Iterator[None]:
    """Have vllm-ascend's implementations read and write this table as that of the draft."""
    before = acl_graph._draft_graph_params
    acl_graph._draft_graph_params = table
    try:
        yield
    finally:
        acl_graph._draft_graph_params = before

# SPDX-License-Identifier: Apache-2.0
"""Captured launches of attention: what implementations note of them, and their updates.

Implementations of vllm-ascend note event, task and operands of each launch by the number of tokens.
Their ``update_graph_params`` later updates all launches of a table. These may belong to several
passes, if they have one class and one number of tokens. So a proposal needs one call for its first
pass and one for all later passes, or more where backends alternate. Beside its launches a call
costs a stream and a look at the configuration. That is paid per call, not per launch.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from typing import Any, NamedTuple

import torch
from vllm_ascend.ascend_forward_context import _EXTRA_CTX
from vllm_ascend.compilation import acl_graph

from mkv_ascend.adapters.common.backends.dense import Dense

Lengths = Sequence[list[int]]
"""For each pass of a proposal, a length for each request."""


class UpdatedLayer(NamedTuple):
    """A layer whose launches take lengths on the host: vllm-ascend's implementation, and ours."""

    implementation: Any
    backend: Dense


Layers = Mapping[str, UpdatedLayer]


def require_all_captured(
    captured: int, what: str, layers: Layers, metadata: Sequence[Mapping[str, Any]]
) -> None:
    """Raise RuntimeError if a capture noted another number of launches than layers have."""
    expected = sum(
        layer.backend.launches(one[name]) for one in metadata for name, layer in layers.items()
    )
    if captured != expected:
        raise RuntimeError(
            f"{captured} {what} of attention were captured, not {expected}: of {len(layers)} "
            f"layers in {len(metadata)} passes"
        )


def require_all_passes(lengths: Lengths, passes: int) -> None:
    """Raise ValueError if there are lengths of another number of passes."""
    if len(lengths) != passes:
        raise ValueError(f"lengths of {len(lengths)} passes for a graph of {passes}; give as many")


def with_lengths(layers: Layers, metadata: Mapping[str, Any], lengths: list[int]) -> dict[str, Any]:
    """Metadata of these layers in one pass, copied once where layers share it."""
    copies: dict[int, Any] = {}
    for name, layer in layers.items():
        built = metadata[name]
        if id(built) not in copies:
            copies[id(built)] = layer.backend.with_lengths(built, lengths)
    return {name: copies[id(metadata[name])] for name in layers}


@dataclass(frozen=True)
class CapturedLaunch:
    """One launch of attention in a graph.

    Attributes:
        name: name of its layer.
        layer: its layer.
        metadata: metadata of the capture.
        tokens: number of tokens of its pass.
        event, handle, operands, workspace: what vllm-ascend notes for updates.
    """

    name: str
    layer: UpdatedLayer
    metadata: Any
    tokens: int
    event: Any
    handle: Any
    operands: Any
    workspace: torch.Tensor

    def updated_with(self) -> tuple[Callable[..., None], bool, int]:
        """Launches with equal values can be updated by one call.

        The values are the function, whether the operator takes sinks, and the number of tokens.
        MLA has one operator.
        """
        implementation = self.layer.implementation
        has_sinks = getattr(implementation, "sinks", None) is not None
        return implementation.update_graph_params, has_sinks, self.tokens


class LargestWorkspaces(dict[int, torch.Tensor]):
    """The largest workspace of all launches with a number of tokens.

    vllm-ascend asks for the first launch's workspace and uses it for all others, whatever they
    need.
    """

    def get(self, tokens: int, default: Any = None) -> Any:
        """None, so that each launch asks for the size that it needs."""
        return default

    def __setitem__(self, tokens: int, workspace: torch.Tensor) -> None:
        """Keep the larger workspace."""
        if tokens not in self or workspace.nbytes > self[tokens].nbytes:
            super().__setitem__(tokens, workspace)


class CapturedGraphParams:
    """The notes of implementations in one capture, in the order of execution.

    Args:
        compares: whether launches with equally many tokens may need workspaces of several sizes.
            Where ranks share sequences, layers are alike, and each asks for what it has noted.
    """

    def __init__(self, *, compares: bool = True) -> None:
        noted: tuple[list[Any], list[Any], list[Any]] = ([], [], [])
        self.events, self.handles, self.parameters = noted
        self._workspaces: dict[int, torch.Tensor] = LargestWorkspaces() if compares else {}

    def recorded_here(self) -> Any:
        """Let implementations note the draft's launches here while the block runs."""
        return use(
            acl_graph.GraphParams(
                defaultdict(lambda: self.events),
                self._workspaces,
                defaultdict(lambda: self.handles),
                defaultdict(lambda: self.parameters),
            )
        )

    def launches(
        self, layers: Layers, metadata: Sequence[Mapping[str, Any]]
    ) -> tuple[tuple[CapturedLaunch, ...], ...]:
        """The noted launches of each pass.

        Args:
            layers: layers of the draft whose launches are updated, in the order of execution.
            metadata: metadata of each pass, by layer.

        Raises:
            RuntimeError: the capture noted another number of launches.
        """
        noted = iter(zip(self.events, self.handles, self.parameters, strict=True))
        require_all_captured(len(self.events), "launches", layers, metadata)
        passes = []
        for pass_metadata in metadata:
            launches = []
            for name, layer in layers.items():
                built = pass_metadata[name]
                tokens = layer.backend.tokens(built)
                launches += [
                    CapturedLaunch(
                        name, layer, built, tokens, *next(noted), self._workspaces[tokens]
                    )
                    for _ in range(layer.backend.launches(built))
                ]
            passes.append(tuple(launches))
        return tuple(passes)


@contextmanager
def use(table: acl_graph.GraphParams) -> Iterator[None]:
    """Let vllm-ascend's implementations use ``table`` for the draft while the block runs."""
    before = acl_graph._draft_graph_params, acl_graph._graph_params
    # MLA of vllm-ascend 0.30.0 notes workspaces with the target's where ranks share sequences.
    acl_graph._draft_graph_params = acl_graph._graph_params = table
    try:
        yield
    finally:
        acl_graph._draft_graph_params, acl_graph._graph_params = before


class UpdateCall:
    """Launches that one call updates, in the order of execution.

    ``table``: what vllm-ascend keeps for updates, for these launches only.
    """

    def __init__(
        self, first_pass: int, launches_by_pass: Sequence[Sequence[CapturedLaunch]]
    ) -> None:
        """
        Args:
            first_pass: number of the first pass.
            launches_by_pass: launches of this pass and of the following ones, of the same layers.
        """
        self.first_pass, self.launches_by_pass = first_pass, launches_by_pass
        launches = [launch for pass_launches in launches_by_pass for launch in pass_launches]
        self._update, self._has_sinks, self._tokens = launches[0].updated_with()
        self.table = acl_graph.GraphParams(
            {self._tokens: [launch.event for launch in launches]},
            {self._tokens: launches[0].workspace},
            {self._tokens: [launch.handle for launch in launches]},
            {self._tokens: [launch.operands for launch in launches]},
        )

    def metadata(self, lengths: Lengths) -> list[dict[str, Any]]:
        """The captured metadata of each pass, by layer, with these lengths."""
        given = []
        for number, launches in enumerate(self.launches_by_pass, self.first_pass):
            layers = {launch.name: launch.layer for launch in launches}
            metadata = {launch.name: launch.metadata for launch in launches}
            given.append(with_lengths(layers, metadata, lengths[number]))
        return given

    def run(self, stream: Any, context: Any, config: Any, lengths: Lengths) -> None:
        """As ``LaunchUpdates.run``, for these launches."""
        _EXTRA_CTX.sinks = self._has_sinks
        given = self.metadata(lengths)
        with use(self.table):
            # By name: hosts take other arguments before it.
            self._update(
                stream,
                context,
                self._tokens,
                config,
                config.speculative_config,
                draft_attn_metadatas=given,
            )


class Updates:
    """The fewest calls that update all launches of a graph in the order of execution.

    A call takes consecutive launches of one pass, or several whole passes, because vllm-ascend
    looks for the same layers in each pass of a call.
    """

    def __init__(self, passes: Sequence[Sequence[CapturedLaunch]]) -> None:
        """
        Args:
            passes: launches of each pass, all of the same layers.
        """
        self._passes = len(passes)
        runs: list[tuple[int, list[list[CapturedLaunch]]]] = []
        for number, launches in enumerate(passes):
            for common, run in groupby(launches, key=CapturedLaunch.updated_with):
                pass_launches = list(run)
                before = runs[-1][1][-1] if runs else []
                whole = len(before) == len(pass_launches) == len(launches)
                if whole and before[0].updated_with() == common:
                    runs[-1][1].append(pass_launches)
                else:
                    runs.append((number, [pass_launches]))
        self.calls = tuple(
            UpdateCall(first_pass, launches_by_pass) for first_pass, launches_by_pass in runs
        )

    def __bool__(self) -> bool:
        """Whether there are launches to update."""
        return bool(self.calls)

    def run(self, stream: Any, context: Any, config: Any, lengths: Lengths) -> None:
        """Give all launches their lengths, and let the replay continue."""
        require_all_passes(lengths, self._passes)
        for call in self.calls:
            call.run(stream, context, config, lengths)

# SPDX-License-Identifier: Apache-2.0
"""Captured launches of attention: what each backend's implementation notes, and its updates.

Implementations of vllm-ascend that take lengths on the host capture each launch as a task that
waits for an event. They note event, task and operands by the number of tokens. Later
``update_graph_params`` gives the task the lengths that it finds in metadata.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from vllm_ascend.attention.attention_v1 import AscendAttentionBackendImpl
from vllm_ascend.attention.dsa_v1 import AscendDSAImpl
from vllm_ascend.attention.mla_v1 import AscendMLAImpl
from vllm_ascend.attention.sfa_v1 import AscendSFAImpl
from vllm_ascend.compilation import acl_graph

from mkv_ascend.drafting.copying import shallow_copy


class CaptureAdapter:
    """What differs between classes of implementations; this class serves fused_infer_attention.

    ``is_updated``: whether it takes lengths on the host, so that each replay needs new ones.
    Otherwise it reads them on the device, where the plan writes them.
    """

    is_updated = True

    def why_not(self, queries: int, builder: Any, *, known: bool = True) -> str | None:
        """Why passes with ``queries`` queries per request are not captured; None if they are.

        Args:
            known: whether passes share what the builder made, or graphs may run it.
        """
        return None

    def of_layer(self, implementation: Any) -> CaptureAdapter:
        """The adapter of one layer; an adapter that needs more than its class asks it here."""
        return self

    def launches(self, metadata: Any) -> int:
        """Captured launches of one layer in a pass with this metadata."""
        return 1

    def tokens(self, metadata: Any) -> int:
        """Queries of a pass with this metadata; the implementation notes its launch by them."""
        tokens: int = metadata.actual_seq_lengths_q[-1]
        return tokens

    def with_lengths(self, metadata: Any, lengths: list[int]) -> Any:
        """A copy of ``metadata`` with these lengths, one for each request."""
        given = shallow_copy(metadata)
        given.seq_lens_list = lengths
        return given

    def has_sinks(self, implementation: Any) -> bool:
        """Whether the launch uses the operator that takes sinks."""
        return implementation.sinks is not None


class MLACapture(CaptureAdapter):
    """MLA: only decodes are captured; prefills are launched without a task."""

    def why_not(self, queries: int, builder: Any, *, known: bool = True) -> str | None:
        """A reason if the rows of a request count as a prefill."""
        most = builder.decode_threshold
        if queries <= most:
            return None
        return f"a request's {queries} tokens are a prefill to MLA, whose decodes have {most}"

    def tokens(self, metadata: Any) -> int:
        """Queries of its decodes; there are no others."""
        return super().tokens(metadata.decode)

    def with_lengths(self, metadata: Any, lengths: list[int]) -> Any:
        """As for the base class; lengths are part of the decodes' metadata."""
        given = shallow_copy(metadata)
        given.decode = super().with_lengths(metadata.decode, lengths)
        return given

    def has_sinks(self, implementation: Any) -> bool:
        """No; there is one operator."""
        return False


class SparseMLACapture(CaptureAdapter):
    """Sparse MLA: it takes nothing on the host."""

    is_updated = False

    def why_not(self, queries: int, builder: Any, *, known: bool = True) -> str | None:
        """A reason if its builder launches kernels."""
        if not known:
            return "its rows are split over ranks, or its slots sorted, for each pass anew"
        return None


class WindowOfKeysCapture(CaptureAdapter):
    """DeepSeek-V4's attention to a window of keys: it takes nothing on the host."""

    is_updated = False

    def why_not(self, queries: int, builder: Any, *, known: bool = True) -> str | None:
        """A reason if the rows of a request are a prefill, whose lengths the builder waits for."""
        most = builder.decode_threshold
        if queries > most:
            return f"a request's {queries} tokens are a prefill, and decodes have {most}"
        return None if known else "its rows are split over ranks"


CAPTURE_ADAPTERS: dict[type[Any], CaptureAdapter] = {
    AscendAttentionBackendImpl: CaptureAdapter(),
    AscendMLAImpl: MLACapture(),
    AscendSFAImpl: SparseMLACapture(),
    AscendDSAImpl: WindowOfKeysCapture(),
}
"""Implementation class -> its capture adapter, subclasses included."""


def capture_adapter(implementation: type[Any]) -> CaptureAdapter | None:
    """The capture adapter of this implementation class; None if it is not captured."""
    for base in implementation.__mro__:
        if base in CAPTURE_ADAPTERS:
            return CAPTURE_ADAPTERS[base]
    return None


def adapter_of_layer(implementation: Any) -> CaptureAdapter:
    """The capture adapter of a layer whose class is captured."""
    adapter = capture_adapter(type(implementation))
    assert adapter is not None, "layers were asked for it before the capture"
    return adapter.of_layer(implementation)


def is_updated(layer: Any) -> bool:
    """Whether a replay must update the lengths of this layer's launches, if it has any."""
    implementation = getattr(layer, "impl", None)
    if implementation is None:
        return False
    adapter = capture_adapter(type(implementation))
    assert adapter is not None, "layers were asked for it before the capture"
    return adapter.is_updated


@dataclass(frozen=True)
class CapturedLaunch:
    """One launch of attention in a graph.

    Attributes:
        implementation: implementation of its layer.
        adapter: capture adapter of the implementation.
        layer: name of its layer.
        metadata: metadata of the capture.
        tokens: number of tokens of its pass.
        event, handle, operands, workspace: what vllm-ascend notes for updates.
    """

    implementation: Any
    adapter: CaptureAdapter
    layer: str
    metadata: Any
    tokens: int
    event: Any
    handle: Any
    operands: Any
    workspace: torch.Tensor

    def updated_with(self) -> tuple[Callable[..., None], bool, int]:
        """Launches with equal values can be updated by one call.

        The values are the function, whether the operator takes sinks, and the number of tokens.
        """
        update = self.implementation.update_graph_params
        return update, self.adapter.has_sinks(self.implementation), self.tokens


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
        self,
        names: Sequence[str],
        metadata: Sequence[Mapping[str, Any]],
        layers: Mapping[str, Any],
    ) -> tuple[tuple[CapturedLaunch, ...], ...]:
        """The noted launches of each pass.

        Args:
            names: layers of the draft whose launches are updated, in the order of execution.
            metadata: metadata of each pass, by layer.

        Raises:
            RuntimeError: the capture noted another number of launches.
        """
        noted = iter(zip(self.events, self.handles, self.parameters, strict=True))
        adapters = {name: adapter_of_layer(layers[name].impl) for name in names}
        expected = sum(adapters[name].launches(one[name]) for one in metadata for name in names)
        if len(self.events) != expected:
            raise RuntimeError(
                f"{len(self.events)} launches of attention were captured, not {expected}: of "
                f"{len(names)} layers in {len(metadata)} passes"
            )
        passes = []
        for pass_metadata in metadata:
            launches = []
            for name in names:
                adapter, built = adapters[name], pass_metadata[name]
                tokens = adapter.tokens(built)
                fixed = layers[name].impl, adapter, name, built, tokens
                launches += [
                    CapturedLaunch(*fixed, *next(noted), self._workspaces[tokens])
                    for _ in range(adapter.launches(built))
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

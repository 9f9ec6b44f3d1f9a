# SPDX-License-Identifier: Apache-2.0
"""The calls that give captured launches of attention the lengths of a proposal.

vllm-ascend's ``update_graph_params`` updates all launches of a table. These may belong to several
passes, if they have one class and one number of tokens. So a proposal needs one call for its first
pass and one for all later passes, or more where backends alternate. Beside its launches a call
costs a stream and a look at the configuration. That is paid per call, not per launch.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

from vllm_ascend.ascend_forward_context import _EXTRA_CTX
from vllm_ascend.compilation import acl_graph

from mkv_ascend.adapters.common.drafting.capture_adapters import CapturedLaunch, use

Lengths = Sequence[list[int]]
"""For each pass of a proposal, a length for each request."""


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
        return [
            _with_lengths(pass_launches, lengths[self.first_pass + number])
            for number, pass_launches in enumerate(self.launches_by_pass)
        ]

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
        """See ``LaunchUpdates``."""
        if len(lengths) != self._passes:
            raise ValueError(
                f"lengths of {len(lengths)} passes for a graph of {self._passes}; give as many"
            )
        for call in self.calls:
            call.run(stream, context, config, lengths)


def _with_lengths(launches: Sequence[CapturedLaunch], lengths: list[int]) -> dict[str, Any]:
    """Metadata of launches of one pass by layer, copied once where layers share it."""
    copies: dict[int, Any] = {}
    for launch in launches:
        if id(launch.metadata) not in copies:
            copies[id(launch.metadata)] = launch.adapter.with_lengths(launch.metadata, lengths)
    return {launch.layer: copies[id(launch.metadata)] for launch in launches}

# SPDX-License-Identifier: Apache-2.0
"""Functions of the host in the order of a stream: torch_npu's ``_launch_host_func``.

Source of the semantics: CANN's aclrtLaunchCallback and aclrtSubscribeReport, which torch_npu
passes on. In a capture the call becomes a part of the graph, and each replay makes it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from emulated_npu.recording import current_tape

_subscribed: set[tuple[int, int]] = set()


def _key(stream: torch.Stream) -> tuple[int, int]:
    return stream.device_index, stream.stream_id


def _subscribe_report(stream: torch.Stream) -> None:
    """Let a thread of the host serve the functions of ``stream``; once for each stream."""
    if _key(stream) in _subscribed:
        raise RuntimeError(f"emulated NPU: {stream} is subscribed already; unsubscribe it first")
    _subscribed.add(_key(stream))


def _unsubscribe_report(stream: torch.Stream) -> None:
    """Take _subscribe_report back."""
    _subscribed.discard(_key(stream))


def _launch_host_func(stream: torch.Stream, function: Callable[[Any], None], argument: Any) -> None:
    """Call ``function(argument)`` when the stream gets there, which here is at once, or at replay.

    RuntimeError for a stream that nobody serves, or that is not the current one.
    """
    if _key(stream) not in _subscribed:
        raise RuntimeError(f"emulated NPU: nobody serves {stream}; call _subscribe_report first")
    current = torch.accelerator.current_stream()
    if _key(current) != _key(stream):
        raise RuntimeError(
            f"emulated NPU: _launch_host_func on {stream}, the current stream is {current}; make "
            "it the current one"
        )
    tape = current_tape()
    if tape is None:
        function(argument)
    else:
        tape.append("host_function", (), functools.partial(function, argument))

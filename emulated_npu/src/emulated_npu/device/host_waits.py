# SPDX-License-Identifier: Apache-2.0
"""Threads of the host that wait for streams, and which of these waits would never end.

A stream that waits for an event goes on when a thread of the host records it. That thread is
thought to be the one that launched the graph there, as in vllm-ascend. So another thread waits, as
on a device. It would wait for ever where the launching thread ended, or itself waits for what this
thread would do: that is told at once.

Source: CANN's aclrtSynchronizeStream and aclrtSynchronizeEvent, which block the calling thread
alone and know nothing of others.
"""

from __future__ import annotations

import threading

_condition = threading.Condition()
_launchers: dict[int, threading.Thread] = {}
"""Tape of launches that wait -> who launched what they wait for. It is here until it has run."""
_running: dict[int, threading.Thread] = {}
"""Such a tape, once the event has come -> who runs it."""
_waiting_for: dict[threading.Thread, int] = {}
"""Thread that waits -> the tape that it waits for."""

_LOOK_AGAIN_SECONDS = 0.05
"""A thread that ends tells nobody."""


def begin(tape: int, launcher: threading.Thread) -> None:
    """``tape`` waits for an event that ``launcher`` is to record."""
    with _condition:
        _launchers[tape] = launcher


def begin_to_run(tape: int) -> None:
    """The event has come: this thread runs ``tape``, and need not wait for itself."""
    with _condition:
        _running[tape] = threading.current_thread()


def wait_again(tape: int) -> None:
    """Another event is waited for before ``tape`` can run."""
    with _condition:
        _running.pop(tape, None)


def end(tape: int) -> None:
    """``tape`` has run, or never will because a launch before it failed."""
    with _condition:
        _launchers.pop(tape, None)
        _running.pop(tape, None)
        _condition.notify_all()


def wait_for(tape: int) -> bool:
    """Wait until ``tape`` has run; False, without waiting, where it never would."""
    here = threading.current_thread()
    with _condition:
        _waiting_for[here] = tape
        try:
            while tape in _launchers and _running.get(tape) is not here:
                if _waits_for_ever(tape, here):
                    return False
                _condition.wait(_LOOK_AGAIN_SECONDS)
        finally:
            del _waiting_for[here]
    return True


def _waits_for_ever(tape: int, here: threading.Thread) -> bool:
    """Whether who is to let ``tape`` run is ``here``, has ended, or waits for one of those."""
    seen: set[int] = set()
    waited: int | None = tape
    while waited is not None and waited in _launchers and waited not in seen:
        seen.add(waited)
        thread = _running.get(waited, _launchers[waited])
        if thread is here or not thread.is_alive():
            return True
        waited = _waiting_for.get(thread)
    return False

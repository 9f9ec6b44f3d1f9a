# SPDX-License-Identifier: Apache-2.0
"""What became of a server that a fault was done to, and of those that waited for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from reliability.client import ANSWERED, HUNG, Answer
from reliability.fault_cases import SIGTERM, Case

HANG_SECONDS = 30.0
"""Within which every client is told something."""


@dataclass
class Verdict:
    """What became of a server.

    Attributes:
        case: what was done to it.
        requests: number of each outcome.
        status: exit status of the server; None where it lives.
        gone: seconds after the fault until the last process was gone; None where one lives.
        reached: whether the fault took place: a launch may come too late.
        sockets: files of sockets that are left.
        problems: what is wrong.
        of_vllm: what is wrong, and was seen to be so on stock vllm-ascend too.
    """

    case: str
    requests: dict[str, int] = field(default_factory=dict)
    status: int | None = None
    gone: float | None = None
    reached: bool = True
    sockets: int = 0
    problems: list[str] = field(default_factory=list)
    of_vllm: list[str] = field(default_factory=list)

    def describe(self) -> str:
        """One line."""
        said = "right" if not self.problems else "WRONG"
        told = ", ".join(f"{count} {name}" for name, count in sorted(self.requests.items()))
        end = "lives"
        if self.gone is not None:
            end = f"exit status {self.status}, gone after {self.gone:.1f} s"
        reached = "" if self.reached else ", not reached"
        return f"{said}  {self.case}{reached}: {told}; {end}"


def waits(case: Case, verdict: Verdict) -> list[str]:
    """Where it is noted that somebody waited for long."""
    is_vllms = case.fault == SIGTERM or case.is_unheard
    return verdict.of_vllm if is_vllms else verdict.problems


def hung(answers: Sequence[Answer], at: float) -> list[str]:
    """Clients that were told too late, or never, how their requests ended."""
    late = [
        answer.ended - at
        for answer in answers
        if answer.outcome == HUNG
        or (answer.outcome != ANSWERED and answer.ended - at > HANG_SECONDS)
    ]
    if not late:
        return []
    return [f"{len(late)} clients were told nothing for {max(late):.0f} s"]


def unanswered(answers: Sequence[Answer]) -> list[str]:
    """Requests that were not answered, and why."""
    return [
        f"request {answer.request.number} {answer.outcome}: {answer.reason}"
        for answer in answers
        if answer.outcome != ANSWERED
    ]

# SPDX-License-Identifier: Apache-2.0
"""A refusal: what was asked, what is possible, what to change."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mkv_ascend import host_versions

if TYPE_CHECKING:
    from mkv_ascend.rules.facts import Facts


@dataclass(frozen=True)
class Refusal:
    """One thing that cannot be served, in three parts; each is a sentence without its stop.

    ``code``: a name that stays, for programs and for docs/refusals.md.
    """

    code: str
    asked: str
    possible: str
    change: str

    def __str__(self) -> str:
        return f"{self.asked}. Possible: {self.possible}. Change: {self.change}."


Check = Callable[["Facts"], Iterator[Refusal]]


@dataclass(frozen=True)
class Rule:
    """A row of a table of rules: when something cannot be served, and the parts of its refusal.

    ``when``: whether these facts cannot be; a mapping has values for the parts besides, and a list
    of mappings one for each refusal. The parts are read by ``str.format`` with these, ``facts``,
    and ``vllm`` and ``ascend``, the hosts with their versions.
    """

    code: str
    when: Callable[[Facts], object]
    asked: str
    possible: str
    change: str

    def __call__(self, facts: Facts) -> Iterator[Refusal]:
        """Every refusal."""
        found = self.when(facts)
        for more in found if isinstance(found, list) else [found] if found else []:
            values = {
                "facts": facts,
                "vllm": host_versions.vllm(),
                "ascend": host_versions.vllm_ascend(),
                **(more if isinstance(more, Mapping) else {}),
            }
            parts = (self.asked, self.possible, self.change)
            yield Refusal(self.code, *(part.format_map(values) for part in parts))


class RefusedError(ValueError):
    """A configuration that cannot be served, with every refusal."""

    def __init__(self, refusals: Iterable[Refusal]) -> None:
        self.refusals = tuple(refusals)
        super().__init__(text_of(self.refusals))


def text_of(refusals: Iterable[Refusal]) -> str:
    """One message; of several refusals each has a line of its own."""
    found = list(refusals)
    if len(found) == 1:
        return f"this cannot be served [{found[0].code}]: {found[0]}"
    lines = [f"this cannot be served, for {len(found)} reasons:"]
    return "\n".join([*lines, *(f"- [{refusal.code}] {refusal}" for refusal in found)])

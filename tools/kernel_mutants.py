# SPDX-License-Identifier: Apache-2.0
"""Small changes of AscendC kernels that tests must notice; tools/mutate_kernels.py tries them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

# Mutants that do what the original does, and why. A name is `file: kind: code`, with the line
# before for a dropped one; if such code occurs several times in the file, `#N` behind it for the
# N-th.
EQUIVALENT: dict[str, str] = {
    "lanes.h: drop: Duplicate(to, static_cast<int32_t>(value), count_); PipeBarrier<PIPE_V>();": (
        "all that is filled today goes through flags before it is used"
    ),
    "lanes.h: drop: AscendC::Add(pairs, pairs, odd, static_cast<int32_t>(count)); "
    "PipeBarrier<PIPE_V>();": "bytes are only stored, behind a flag",
    "draft_plan.cpp: shrink: pipe_.InitBuffer(out_queue_, 2, out_bytes);": "two overlap stores",
    "position_runs.h: shift: return starts_.GetValue(request) > token;": (
        "the search ends at an earlier request then, and the walk from there finds the right one"
    ),
    "target_slots.cpp: shrink: pipe_.InitBuffer(out_queue_, 2, lane_bytes);": "two overlap stores",
}
SWITCHES = 'extern "C" {\ninline int mkv_mutant = 0;\n}\n'


@dataclass(frozen=True)
class Mutant:
    """One change: text put before ``begin`` and after ``end``, in force for its switch."""

    file: str
    kind: str
    begin: int
    end: int
    change: str
    code: str
    line: int
    number: int  # among the mutants of the file with this kind and code, from 1
    switch: int  # among all mutants of the file, from 1

    @property
    def name(self) -> str:
        suffix = f" #{self.number}" if self.number > 1 else ""
        return f"{self.file}: {self.kind}: {self.code}{suffix}"

    @property
    def before(self) -> str:
        return f"if (mkv_mutant != {self.switch}) {{ " if self.kind == "drop" else "("

    @property
    def after(self) -> str:
        if self.kind == "drop":
            return " }"
        sign, amount = self.change.split()
        return f") {sign} {amount} * (mkv_mutant == {self.switch})"


@dataclass(frozen=True)
class Change:
    """A mutant before it is numbered; ``change`` is empty for dropped code, else as ``+ 8``."""

    kind: str
    begin: int
    end: int
    change: str = ""


def closing(text: str, opening: int) -> int:
    """Index of the bracket that closes the one at ``opening``."""
    pairs = {"(": ")", "[": "]", "{": "}"}
    depth = 0
    for index in range(opening, len(text)):
        if text[index] in pairs:
            depth += 1
        elif text[index] in pairs.values():
            depth -= 1
            if depth == 0:
                return index
    raise ValueError(f"No bracket closes the one at character {opening}.")


def arguments(text: str, opening: int) -> list[tuple[int, int]]:
    """Begin and end of each argument in the brackets at ``opening``."""
    end = closing(text, opening)
    borders, depth = [opening], 0
    for index in range(opening + 1, end):
        if text[index] in "([{":
            depth += 1
        elif text[index] in ")]}":
            depth -= 1
        elif text[index] == "," and depth == 0:
            borders.append(index)
    borders.append(end)
    return [(a + 1, b) for a, b in pairwise(borders)]


def dropped_synchronisation(text: str) -> Iterator[Change]:
    """Barriers and flags, EnQue with its DeQue, FreeTensor."""
    statement = r"^[ ]*(?:PipeBarrier|Sync|SetFlag|WaitFlag)<[^;]*;"
    pair = r"^[ ]*\w+\.EnQue\(\w+\);\n[ ]*\w+ = \w+\.(?:template )?DeQue<\w+>\(\);"
    for pattern in (statement, pair, r"^[ ]*\w+\.FreeTensor\(\w+\);"):
        for match in re.finditer(pattern, text, re.MULTILINE):
            yield Change("drop", match.start(), match.end())


def shrunk_buffers(text: str) -> Iterator[Change]:
    """32 bytes less in each buffer, and one buffer less in each queue of several."""
    for match in re.finditer(r"\bInitBuffer\(", text):
        given = arguments(text, match.end() - 1)
        if len(given) < 2:
            continue
        yield Change("shrink", *given[-1], "- 32")
        if len(given) == 3 and text[slice(*given[1])].strip() != "1":
            yield Change("shrink", *given[1], "- 1")


def shifted_offsets(text: str) -> Iterator[Change]:
    """Offsets of tensors by 8 elements in UB, by 1 in global memory; indices of scalars by 1."""
    declared = re.findall(r"GlobalTensor<\w+>&? (\w+(?:, \w+)*)(?=[;,)=( ])", text)
    declared += re.findall(r"\b(\w+) = GlobalAt<", text)
    distant = {name.strip() for names in declared for name in names.split(",")}
    arrays = set(re.findall(r"[\w>] (\w+)\[\w*\](?:;| =)", text))
    for match in re.finditer(r"\b(\w+)\[", text):
        if match[1] not in arrays:
            step = "+ 1" if match[1] in distant else "+ 8"
            yield Change("shift", match.end(), closing(text, match.end() - 1), step)
    for match in re.finditer(r"\b[GS]etValue\(", text):
        yield Change("shift", *arguments(text, match.end() - 1)[0], "+ 1")


def changed_copies(text: str) -> Iterator[Change]:
    """Four more in each length and stride of a copy that is not a plain number."""
    for match in re.finditer(r"\bDataCopyExtParams(?: \w+)?\{", text):
        for begin, end in arguments(text, match.end() - 1)[:4]:
            cast = re.match(r"\s*static_cast<\w+>\(", text[begin:end])
            if cast:
                opening = begin + cast.end() - 1
                yield Change("copy", opening + 1, closing(text, opening), "+ 4")


def without_comments(text: str) -> str:
    """As long as before."""
    return re.sub(r"//[^\n]*", lambda match: " " * len(match[0]), text)


def code_of(text: str, change: Change) -> str:
    """The lines of a change, for a dropped one with the line before."""
    begin = text.rindex("\n", 0, change.begin + 1) + 1
    if change.kind == "drop":
        begin = text.rindex("\n", 0, len(text[:begin].rstrip())) + 1
    return " ".join(text[begin : text.index("\n", change.end)].split())


def find_mutants(file: str, text: str) -> list[Mutant]:
    """All mutants of a source, in its order."""
    code = without_comments(text)
    makers = (dropped_synchronisation, shrunk_buffers, shifted_offsets, changed_copies)
    changes = sorted(
        (change for make in makers for change in make(code)),
        key=lambda change: (change.begin, -change.end),
    )
    seen: dict[tuple[str, str], int] = {}
    found = []
    for switch, change in enumerate(changes, 1):
        key = (change.kind, code_of(code, change))
        seen[key] = seen.get(key, 0) + 1
        line = text.count("\n", 0, change.begin) + 1
        found.append(
            Mutant(
                file, change.kind, change.begin, change.end, change.change, key[1], line,
                seen[key], switch,
            )
        )  # fmt: skip
    return found


def with_switches(text: str, mutants: Sequence[Mutant]) -> str:
    """The source with all mutants in it; none is in force while ``mkv_mutant`` is 0.

    Changes may lie within each other: the outer one's text goes outside.
    """
    # Text to put in: where, what comes first there, and the text.
    pieces: list[tuple[int, int, int, str]] = []
    for one in mutants:
        # At one place, ends come before begins; inner ends first, outer begins first.
        pieces.append((one.begin, 1, -one.end, one.before))
        pieces.append((one.end, 0, -one.begin, one.after))
    out, at = [], 0
    for place, _, _, piece in sorted(pieces):
        out += [text[at:place], piece]
        at = place
    whole = "".join([*out, text[at:]])
    # After the first line, the licence.
    head, rest = whole.split("\n", 1)
    guard = "#ifndef MKV_MUTANT\n#define MKV_MUTANT\n" + SWITCHES + "#endif\n"
    return f"{head}\n{guard}{rest}"

# SPDX-License-Identifier: Apache-2.0
"""Parse AscendC kernels with clang, and read its errors as findings.

CANN's compiler tells functions of the host from those of the cores, and pointers into global memory
from pointers into the unified buffer and onto the stack. clang has both: ``__aicore__`` is parsed
as CUDA's ``__device__``, ``__global__`` as its kernel, ``__gm__`` and ``__ubuf__`` as address
spaces. AscendC itself is ``csrc/ascendc_host/declarations``. Every source is parsed twice, as CANN
does it: once for the cores, and once for the host, where pointers have no address space.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from clang import cindex

ROOT = Path(__file__).resolve().parent.parent
CHECKER = ROOT / "csrc" / "ascendc_host"
DECLARATIONS = CHECKER / "declarations"

REMEDIES = {
    "syntax": "write what CANN's compiler parses: C++17 and what csrc/ascendc_host declares",
    "host_calls_device": "give the host a function of its own, without __aicore__",
    "device_calls_host": "mark it __aicore__, or pass what the host computes as an argument",
    "address_space": "keep __gm__ and __ubuf__ on the pointer, and copy between the two memories",
    "double": "take float (a literal needs its F) or int64_t: the cores have no double",
    "recursion": "write a loop: functions of a core are inlined into one another",
    "standard_library": "write it out with __aicore__, or keep it in a file that holds no kernel",
    "language": "do without it: CANN's compiler has no such thing on the cores",
    "stack": "put the data into the unified buffer, or split it into smaller pieces",
}
"""Rule -> what to change."""

FUNCTION_KINDS = {
    cindex.CursorKind.FUNCTION_DECL,
    cindex.CursorKind.FUNCTION_TEMPLATE,
    cindex.CursorKind.CXX_METHOD,
    cindex.CursorKind.CONSTRUCTOR,
    cindex.CursorKind.DESTRUCTOR,
    cindex.CursorKind.CONVERSION_FUNCTION,
}
OF_THE_CORES = {cindex.CursorKind.CUDADEVICE_ATTR, cindex.CursorKind.CUDAGLOBAL_ATTR}
LIBRARY_NAMES = "abs|assert|free|malloc|mem(?:cpy|move|set|cmp)|printf|sqrt|str(?:cmp|cpy|len)"
FOLDERS = (DECLARATIONS, DECLARATIONS / "standard", CHECKER / "include")
SHARED_OPTIONS = (
    "-x",
    "cuda",
    "-std=c++17",
    "-target",
    "x86_64-unknown-linux-gnu",
    "--cuda-gpu-arch=sm_70",
    "-nocudainc",
    "-nocudalib",
    "-nostdinc",
    "-ferror-limit=0",
    "-Wno-unknown-cuda-version",
    # A constexpr function is one of the host unless it says otherwise, as for CANN.
    "-Xclang",
    "-fno-cuda-host-device-constexpr",
    "-D__aicore__=__attribute__((device))",
    "-D__global__=__attribute__((global))",
    *(f"-I{folder}" for folder in FOLDERS),
)
SIDE_OPTIONS = {
    "cores": (
        "--cuda-device-only",
        "-D__gm__=__attribute__((address_space(1)))",
        "-D__ubuf__=__attribute__((address_space(3)))",
    ),
    "host": ("--cuda-host-only", "-D__gm__=", "-D__ubuf__="),
}


@dataclass(frozen=True, order=True)
class Finding:
    """One thing that CANN's compiler would not take, or would take with another meaning."""

    file: str
    line: int
    rule: str
    message: str

    def __str__(self) -> str:
        path = Path(self.file)
        shown = path.relative_to(ROOT) if path.is_relative_to(ROOT) else path
        place = f"{shown}:{self.line}: {self.rule}: {self.message}"
        return f"{place}\n    change: {REMEDIES[self.rule]}"


@cache
def _index() -> Any:
    return cindex.Index.create()


def parse(source: Path, side: str) -> Any:
    """The translation unit of a kernel source, for ``cores`` or for the ``host``."""
    text = source.read_text(encoding="utf-8")
    # clang takes a kernel for a device function as it is, and not both words; lines stay.
    alone = re.sub(r"__global__(\s+)__aicore__", r"__global__\1", text)
    options = [*SHARED_OPTIONS, *SIDE_OPTIONS[side]]
    return _index().parse(str(source), args=options, unsaved_files=[(str(source), alone)])


def is_ours(cursor: Any) -> bool:
    """Whether it stands in a file of the kernels and not in the declarations of AscendC."""
    file = cursor.location.file
    return file is not None and not any(Path(file.name).is_relative_to(one) for one in FOLDERS)


def functions(unit: Any) -> Iterator[Any]:
    """Every function of ours that has a body, templates included."""

    def below(cursor: Any) -> Iterator[Any]:
        for child in cursor.get_children():
            if child.kind in FUNCTION_KINDS and child.is_definition() and is_ours(child):
                yield child
            yield from below(child)

    return below(unit.cursor)


def runs_on_cores(function: Any) -> bool:
    """Whether it is marked __aicore__ or __global__."""
    return any(child.kind in OF_THE_CORES for child in function.get_children())


def _extents_of_host(unit: Any) -> list[tuple[str, int, int]]:
    """File, first and last line of the functions of the host."""
    return [
        (function.location.file.name, function.extent.start.line, function.extent.end.line)
        for function in functions(unit)
        if not runs_on_cores(function)
    ]


def _rule_of(diagnostic: Any) -> str:
    """Which rule an error of clang is about, by its words and those of its notes."""
    words = " ".join([diagnostic.spelling, *(note.spelling for note in diagnostic.children)])
    if re.search(r"to __(?:device|global)__ function.* (?:in|from) __host__", words):
        return "host_calls_device"
    if re.search(r"to __host__ (?:function|variable).* (?:in|from) __(?:device|global)__", words):
        return "device_calls_host"
    if re.search(r"namespace 'std'|undeclared identifier 'std'|' file not found", words) or (
        re.search(rf"undeclared identifier '?(?:{LIBRARY_NAMES})\b", words)
    ):
        return "standard_library"
    if re.search(r"address.space|__gm__|__ubuf__", words):
        return "address_space"
    if re.search(r"cannot use '(?:throw|try)'|exceptions", words):
        return "language"
    return "syntax"


def errors(unit: Any, side: str, source: Path) -> Iterator[Finding]:
    """What clang refuses. Functions of the host are judged by the parse for the host, in which no
    pointer has an address space; everything else by the parse for the cores."""
    host = _extents_of_host(unit)
    for diagnostic in unit.diagnostics:
        if diagnostic.severity < cindex.Diagnostic.Error:
            continue
        place = diagnostic.location
        file = place.file.name if place.file is not None else str(source)
        in_host = any(name == file and first <= place.line <= last for name, first, last in host)
        if in_host == (side == "host"):
            notes = [note.spelling for note in diagnostic.children if "candidate" in note.spelling]
            message = "; ".join([diagnostic.spelling, *notes[:1]])
            yield Finding(file, place.line, _rule_of(diagnostic), message)

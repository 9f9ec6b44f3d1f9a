# SPDX-License-Identifier: Apache-2.0
"""Build AscendC kernels for the CPU, launch them on tensors, and read what the checker says.

``csrc/ascendc_host/README.md`` says what is checked. A kernel file holds, beside the kernel, a
plain function that launches it with ``MKV_LAUNCH``::

    library = HostKernels(build([Path("kernels.cpp")], folder))
    report = library.launch("doubled_launch", 4, None, x, Output(y), ctypes.c_int32(n))
    report.require_clean()
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
HEADERS = ROOT / "csrc" / "ascendc_host" / "include"
ENTRY = ROOT / "csrc" / "ascendc_host" / "src" / "entry.cpp"
PIPES = ("S", "V", "MTE2", "MTE3")
SANITIZERS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all")


class BuildFailedError(RuntimeError):
    """The compiler refused a source; its output is the message."""


def compiler() -> str:
    """The C++ compiler: $CXX, else g++ or c++."""
    for name in (os.environ.get("CXX"), "g++", "c++"):
        found = name and shutil.which(name)
        if found:
            return found
    raise BuildFailedError(
        "No C++ compiler for the kernels. Install g++ (build-essential), or set CXX."
    )


def run_compiler(arguments: Sequence[str | Path]) -> None:
    """Run the compiler with the folder of ascendc_host's headers.

    Raises:
        BuildFailedError: with the compiler's output.
    """
    command = [compiler(), "-std=c++17", "-Wall", "-Wextra", "-I", str(HEADERS)]
    done = subprocess.run(
        [*command, *(str(argument) for argument in arguments)], capture_output=True, text=True
    )
    if done.returncode != 0:
        raise BuildFailedError(done.stderr)


def build(
    sources: Sequence[Path],
    folder: Path,
    *,
    name: str = "libkernels.so",
    flags: Iterable[str] = (),
    optimise: str = "-O1",
) -> Path:
    """One shared library of kernels and the checker's entry points, in ``folder``.

    Raises:
        BuildFailedError: the compiler's output.
    """
    output = folder / name
    run_compiler([optimise, "-g", "-shared", "-fPIC", *flags, *sources, ENTRY, "-o", output])
    return output


@dataclass(frozen=True)
class Problem:
    """What the checker found; ``kind`` is a word of the README's table."""

    kind: str
    core: int
    pipe: str
    buffer: str
    file: str
    line: int
    times: int
    message: str

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}: core {self.core}"
        where = ", ".join(text for text in (place, self.pipe, self.buffer) if text)
        return f"{where}: {self.kind}: {self.message} ({self.times} times)"


@dataclass(frozen=True)
class Counters:
    """Work of one core, or the sum over cores. Bytes cost the sectors of 32 that they touch."""

    core: int
    instructions: Mapping[str, int]
    vector_repeats: int
    flags: int
    barriers: int
    read_bytes: int
    read_cost: int
    write_bytes: int
    write_cost: int
    cache_lines: int
    wrapped: int
    ub_bytes: int

    @property
    def cost_bytes(self) -> int:
        """Bytes moved between global memory and UB, both ways, as they cost."""
        return self.read_cost + self.write_cost


@dataclass(frozen=True)
class Report:
    """One launch."""

    kernel: str
    blocks: int
    seed: int
    problems: tuple[Problem, ...]
    cores: tuple[Counters, ...]

    @classmethod
    def from_json(cls, text: str) -> Report:
        fields = json.loads(text)
        return cls(
            kernel=fields["kernel"],
            blocks=fields["blocks"],
            seed=fields["seed"],
            problems=tuple(Problem(**problem) for problem in fields["problems"]),
            cores=tuple(Counters(**core) for core in fields["cores"]),
        )

    @property
    def kinds(self) -> set[str]:
        return {problem.kind for problem in self.problems}

    def total(self, field: str) -> int:
        """A counter summed over cores: a field of `Counters`, or the name of a pipe."""
        if field in PIPES:
            return sum(core.instructions[field] for core in self.cores)
        return sum(int(getattr(core, field)) for core in self.cores)

    def require_clean(self) -> None:
        """Raise `AssertionError` that lists the problems, if there are any."""
        if self.problems:
            lines = "\n".join(str(problem) for problem in self.problems)
            raise AssertionError(f"kernel {self.kernel}, seed {self.seed}:\n{lines}")


@dataclass(frozen=True)
class Output:
    """An argument that the kernel may write."""

    tensor: Any


@dataclass(frozen=True)
class Memory:
    """Address and size of a contiguous torch tensor or numpy array."""

    address: int
    size: int

    @classmethod
    def of(cls, tensor: Any) -> Memory:
        if hasattr(tensor, "data_ptr"):
            # The bytes from the first to the last element, gaps of strides included.
            reach = sum(
                (length - 1) * stride
                for length, stride in zip(tensor.shape, tensor.stride(), strict=True)
            )
            elements = reach + 1 if tensor.numel() else 0
            return cls(int(tensor.data_ptr()), elements * int(tensor.element_size()))
        if not tensor.flags.c_contiguous:
            raise ValueError("A numpy array for a kernel must be contiguous.")
        return cls(int(tensor.ctypes.data), int(tensor.nbytes))


class HostKernels:
    """A library made by `build`."""

    def __init__(self, path: Path) -> None:
        self._library = ctypes.CDLL(str(path))
        self._library.ascendc_host_begin.argtypes = [ctypes.c_uint64]
        self._library.ascendc_host_tensor.argtypes = [
            ctypes.c_char_p,
            ctypes.c_void_p,
            ctypes.c_uint64,
            ctypes.c_int32,
        ]
        self._library.ascendc_host_report.restype = ctypes.c_char_p

    @property
    def handle(self) -> ctypes.CDLL:
        """The loaded library itself."""
        return self._library

    def launch(
        self,
        function: str,
        *arguments: Any,
        seed: int = 0,
        reachable: Mapping[str, Any] | None = None,
    ) -> Report:
        """Call a launching function of the library.

        Args:
            function: its name.
            arguments: in its order. Tensors are passed by address and may only be read, unless
                they come as `Output`; None is a null pointer; integers are C ``int``, for other
                widths take ctypes' types.
            seed: of the order of cores, of junk and of poison.
            reachable: further tensors, by name, that the kernel reaches through addresses in a
                table; ``Output`` as above.
        """
        self._library.ascendc_host_begin(seed)
        values = [self._passed(f"argument {i}", one) for i, one in enumerate(arguments)]
        for name, tensor in (reachable or {}).items():
            self._passed(name, tensor)
        getattr(self._library, function)(*values)
        return Report.from_json(self._library.ascendc_host_report().decode())

    def _passed(self, name: str, argument: Any) -> Any:
        """The argument as ctypes takes it; memory is made known to the checker."""
        writable = isinstance(argument, Output)
        tensor = argument.tensor if isinstance(argument, Output) else argument
        if not hasattr(tensor, "data_ptr") and not hasattr(tensor, "ctypes"):
            return tensor
        memory = Memory.of(tensor)
        self._library.ascendc_host_tensor(name.encode(), memory.address, memory.size, writable)
        return ctypes.c_void_p(memory.address)

# SPDX-License-Identifier: Apache-2.0
"""Faults of the device at a chosen launch of an operator, as a file asks for them.

``EMULATED_NPU_FAULTS`` names a file. It may be written before a process starts or while it runs:
each process reads it at its next launch, and counts launches from then on. It holds a list::

    [{"operator": "npu_fused_infer_attention_score", "launch": 40, "fault": "error"}]

Launches by replayed graphs count as well. Names are those of the counters; ``*`` is any operator.
Operators of libraries that Python does not see (ATen's, Triton kernels) cannot be asked for NaN,
and what they write cannot be lost.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch

from emulated_npu.nested import tensors_in

ERROR, NAN, FLIP, MEMORY, DELAY, KILL = "error", "nan", "flip", "memory", "delay", "kill"
LOST = "lost"
FAULTS = {
    ERROR: "the launch fails; whoever waits for the device from then on is told",
    NAN: "the operator's floating-point results are NaN",
    FLIP: "one bit of the operator's floating-point results is another one",
    MEMORY: "the next allocation of the device finds no memory",
    DELAY: "the launch takes `seconds`",
    KILL: "the process is ended by SIGKILL at the launch",
    LOST: "what the operator writes into its arguments is lost: they stay as they were",
}
"""What can be asked for."""
NOTHING_LOST = contextlib.nullcontext()
ANY = "*"
FOREIGN = ("aten::", "triton.", "hccl.", "mkv_ascend::", "NPUGraph.", "graph_task_update")
"""How names of launches begin whose results are not known here."""


class FaultError(ValueError):
    """A file asks for what there is not; the message says what there is."""


@dataclass(frozen=True)
class Fault:
    """One fault.

    Attributes:
        operator: name of the counters, or ``ANY``.
        launch: at which launch, the first is 1.
        fault: one of ``FAULTS``.
        seconds: of a delay.
        times: at how many launches in a row.
        process: only in processes whose title holds this; empty: in each.
    """

    operator: str
    launch: int
    fault: str
    seconds: float = 1.0
    times: int = 1
    process: str = ""

    @classmethod
    def of(cls, value: Any) -> Fault:
        """From what JSON has. Raises FaultError."""
        names = [field.name for field in fields(cls)]
        if not isinstance(value, dict) or not {"operator", "launch", "fault"} <= set(value):
            raise FaultError(f"a fault is an object with operator, launch and fault, not {value}")
        if unknown := sorted(set(value) - set(names)):
            raise FaultError(f"a fault has no {', '.join(unknown)}; known: {', '.join(names)}")
        found = cls(**value)
        if found.fault not in FAULTS:
            raise FaultError(f"fault {found.fault!r}; allowed: {', '.join(FAULTS)}")
        if found.launch < 1:
            raise FaultError(f"launch {found.launch}; the first launch is 1")
        if found.times < 1:
            raise FaultError(f"times {found.times}; a fault happens once or more")
        if found.fault in (*SPOILING, LOST) and found.operator.startswith(FOREIGN):
            raise FaultError(
                f"{found.fault} in results of {found.operator}: results are known of operators "
                "that Python implements alone; ask for one of those, or for error, memory, delay "
                "or kill"
            )
        return found


def read(path: Path) -> list[Fault]:
    """What a file asks for. Raises FaultError."""
    try:
        values = json.loads(path.read_text())
    except ValueError as error:
        raise FaultError(f"{path} is not JSON: {error}") from error
    if not isinstance(values, list):
        raise FaultError(f"{path} holds no list of faults")
    return [Fault.of(value) for value in values]


class FaultInjector:
    """Faults of this process.

    Args:
        path: the file.
        fail: has everything fail, with a text, that waits for the device from now on.
        refuse_memory: has the next allocation fail.
    """

    def __init__(
        self, path: Path, fail: Callable[[str], None], refuse_memory: Callable[[], None]
    ) -> None:
        self._path = path
        self._fail, self._refuse_memory = fail, refuse_memory
        self._seen: int | None = None
        self._waiting: list[Fault] = []
        self._counts: dict[str, int] = {}
        self._spoils: Callable[[Any], Any] | None = None
        self._loses = False
        self.error = ""

    def launched(self, name: str) -> None:
        """An operator is about to be launched."""
        self._read_again()
        if not self._waiting:
            return
        for key in (name, ANY):
            self._counts[key] = self._counts.get(key, 0) + 1
        for fault in list(self._waiting):
            since = self._counts.get(fault.operator, 0) - fault.launch
            # A process that starts gets its title late.
            if fault.operator in (name, ANY) and since >= 0 and fault.process in _title():
                if since >= fault.times - 1:
                    self._waiting.remove(fault)
                self._do(fault, name)

    def spoil(self, results: Any) -> None:
        """Spoil the floating-point results of an operator, if it is its turn."""
        if self._spoils is None:
            return
        spoiled = [tensor for tensor in tensors_in(results) if tensor.is_floating_point()]
        for tensor in spoiled:
            self._spoils(tensor)
        if spoiled:
            self._spoils = None

    def writing(self, arguments: Any) -> contextlib.AbstractContextManager[None]:
        """An operator writes into its arguments while inside; it is lost, if it is its turn."""
        if not self._loses:
            return NOTHING_LOST
        self._loses = False
        return _lost(list(tensors_in(arguments)))

    def raise_error(self) -> None:
        """Raise what a launch failed with, if one has."""
        if self.error:
            raise RuntimeError(self.error)

    def _do(self, fault: Fault, name: str) -> None:
        print(f"emulated NPU: asked-for {fault.fault} at a launch of {name}", file=sys.stderr)
        sys.stderr.flush()
        if fault.fault == ERROR:
            self.error = (
                f"emulated NPU: error code 507015 (aicore exception) of {name}, launch "
                f"{fault.launch}, which {self._path} asked for. The host is told while it waits."
            )
            self._fail(self.error)
        elif fault.fault in SPOILING:
            self._spoils = SPOILING[fault.fault]
        elif fault.fault == LOST:
            self._loses = True
        elif fault.fault == MEMORY:
            self._refuse_memory()
        elif fault.fault == DELAY:
            time.sleep(fault.seconds)
        else:
            os.kill(os.getpid(), signal.SIGKILL)

    def _read_again(self) -> None:
        try:
            changed = os.stat(self._path).st_mtime_ns
        except FileNotFoundError:
            return
        if changed == self._seen:
            return
        self._seen, self._counts = changed, {}
        try:
            self._waiting = read(self._path)
        except FaultError as error:
            print(f"emulated NPU: no faults: {error}", file=sys.stderr, flush=True)
            self._waiting = []


@contextlib.contextmanager
def _lost(tensors: list[torch.Tensor]) -> Iterator[None]:
    before = [tensor.clone() for tensor in tensors]
    yield
    for tensor, copy in zip(tensors, before, strict=True):
        tensor.copy_(copy)


def _flip(tensor: torch.Tensor) -> None:
    """Turn the highest bit of the exponent of the first number, if it has two bytes or more."""
    patterns = {2: (torch.int16, 14), 4: (torch.int32, 30), 8: (torch.int64, 62)}
    if tensor.numel() and tensor.element_size() in patterns:
        dtype, bit = patterns[tensor.element_size()]
        first = tensor[(slice(0, 1),) * tensor.dim()]
        first.view(dtype).bitwise_xor_(1 << bit)


SPOILING: dict[str, Callable[[torch.Tensor], Any]] = {
    NAN: lambda tensor: tensor.fill_(float("nan")),
    FLIP: _flip,
}
"""What is done to a tensor of results."""


def _title() -> str:
    return Path("/proc/self/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")


injector: FaultInjector | None = None
"""Of this process; None where no faults are asked for."""


def install(path: Path, library: ctypes.CDLL) -> None:
    """Have launches of this process ask a file. Raises FaultError for what it holds."""
    global injector
    if path.exists():
        read(path)
    injector = FaultInjector(
        path,
        lambda text: library.emulated_npu_set_device_error(text.encode()),
        library.emulated_npu_refuse_next_allocation,
    )
    library.emulated_npu_set_launch_callback(_on_launch)


def launched(name: str) -> None:
    """An operator that Python implements is about to be launched."""
    if injector is not None:
        injector.launched(name)


def spoil(results: Any) -> Any:
    """Results of an operator that Python implements, before anyone reads them; they themselves."""
    if injector is not None:
        injector.spoil(results)
    return results


def writing(arguments: Any) -> contextlib.AbstractContextManager[None]:
    """An operator that Python implements may write into its arguments while inside."""
    return NOTHING_LOST if injector is None else injector.writing(arguments)


def raise_error() -> None:
    """The host waits for the device."""
    if injector is not None:
        injector.raise_error()


@ctypes.CFUNCTYPE(None, ctypes.c_char_p)
def _on_launch(name: bytes) -> None:
    launched(name.decode())

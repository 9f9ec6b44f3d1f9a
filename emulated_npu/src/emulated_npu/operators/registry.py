# SPDX-License-Identifier: Apache-2.0
"""The registry of emulated operators: one decorator, one table.

How to write an operator
------------------------
A kernel is a plain function on CPU tensors; the decorator replaces it by an :class:`Operator`::

    @operator("npu_rms_norm", source="op-plugin docs: torch_npu.npu_rms_norm", limits="...")
    def npu_rms_norm(x, gamma, epsilon=1e-6):
        ...

    @npu_rms_norm.check
    def _check_rms_norm(gamma):
        require_dtype("gamma", gamma, FLOATS)

- ``npu_rms_norm(...)`` is what ``torch_npu`` shows: it takes npu tensors, counts the launch, runs
  the check in strict mode, lends the kernel zero-copy CPU aliases, and hands npu tensors back.
- ``npu_rms_norm.kernel(...)`` is the plain function, for CPU tensors. It needs no device.
- ``npu_rms_norm.checked(...)`` is check (always) and kernel, for CPU tensors: for unit tests.

A kernel that works in place returns the tensor it was given: the caller then gets his own tensor
object back. A check lists the kernel's parameters that it reads (see ``binding``) and raises
:class:`OperatorArgumentError`; the operator's name is put in front of the message here.

An operator of another namespace (``atb``, ``_C_ascend``) names it; an overload such as ``.out`` is
an operator of its own with ``overload="out"``, reached as ``npu_x.out``.

Everything registered stands in :data:`OPERATORS`, from which docs/reference/operators.md is made.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import pkgutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, NoReturn, ParamSpec, TypeVar

import torch

from emulated_npu import counters, faults, recording
from emulated_npu.operators.binding import bound_by
from emulated_npu.settings import settings

P = ParamSpec("P")
R = TypeVar("R")
C = TypeVar("C", bound=Callable[..., None])

TORCH_NPU = "torch_npu"


class OperatorArgumentError(ValueError):
    """Arguments that the documentation of an operator does not allow."""


@dataclass(frozen=True)
class OperatorEntry:
    """What the table says about one operator.

    source: where its semantics are documented. limits: what the strict check allows, and where the
    emulation follows hardware rather than documentation. missing: what raises NotImplementedError.
    host_arguments: arguments that live on the host. writes: arguments written in place. options:
    what a kernel with ``**options`` takes by keyword, and the defaults.
    """

    name: str
    namespace: str
    overload: str
    source: str
    limits: str
    missing: str
    host_arguments: tuple[str, ...]
    writes: tuple[str, ...]
    module: str
    launches: bool = True
    options: Mapping[str, Any] = field(default_factory=dict, compare=False)
    function: Operator[..., Any] | None = field(default=None, repr=False, compare=False)

    @property
    def key(self) -> str:
        """Name in OPERATORS and in the launch counters; see qualified_name."""
        return qualified_name(self.namespace, self.name, self.overload)


def qualified_name(namespace: str, name: str, overload: str = "") -> str:
    """``npu_x`` of torch_npu, ``namespace.npu_x`` of others, ``npu_x.out`` for an overload."""
    prefix = "" if namespace == TORCH_NPU else f"{namespace}."
    suffix = f".{overload}" if overload else ""
    return f"{prefix}{name}{suffix}"


OPERATORS: dict[str, OperatorEntry] = {}


class Operator(Generic[P, R]):
    """A kernel for CPU tensors, dressed as an operator for npu tensors."""

    def __init__(self, entry: OperatorEntry, kernel: Callable[P, R]) -> None:
        self.entry = entry
        self.kernel = kernel
        self._check: Callable[..., None] | None = None
        self._parameters = _positional_names(kernel)
        self._overloads: dict[str, Operator[..., Any]] = {}
        functools.update_wrapper(self, kernel)
        self.__name__ = entry.name

    def check(self, function: C) -> C:
        """Decorator: `function` reads arguments of the kernel and refuses the undocumented."""
        if self._check is not None:
            raise ValueError(f"{self.entry.key} already has a check")
        self._check = bound_by(self.kernel, function)
        return function

    def run_check(self, *args: Any, **kwargs: Any) -> None:
        """Raise OperatorArgumentError, with the operator's name, if the check refuses."""
        if self._check is None:
            return
        try:
            self._check(*args, **kwargs)
        except OperatorArgumentError as error:
            raise OperatorArgumentError(f"{self.entry.key}: {error}") from None

    def checked(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Check and kernel on CPU tensors, whatever the mode: for tests without a device."""
        self.run_check(*args, **kwargs)
        with torch.no_grad():
            return self.kernel(*args, **kwargs)

    def add_overload(self, name: str, overload: Operator[..., Any]) -> None:
        """Make `overload` reachable as an attribute, as in ``npu_x.out``."""
        self._overloads[name] = overload

    def __getattr__(self, name: str) -> Operator[..., Any]:
        overloads = self.__dict__.get("_overloads", {})
        if name == "default":
            return self
        if name in overloads:
            return overloads[name]
        raise AttributeError(f"operator {self.__name__} has no overload or attribute {name!r}")

    def __repr__(self) -> str:
        return f"<emulated operator {self.entry.key}>"

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        tape = recording.current_tape()
        if tape is not None:
            return self._record(tape, args, kwargs)
        if self.entry.launches:
            counters.record_launch(self.entry.key)
        lending = _Lending(self.entry, settings().strict)
        host_args = [
            lending.lend(self._parameter_name(index), value) for index, value in enumerate(args)
        ]
        host_kwargs = {name: lending.lend(name, value) for name, value in kwargs.items()}
        if lending.strict:
            self.run_check(*host_args, **host_kwargs)
        with torch.no_grad(), faults.writing((*host_args, *host_kwargs.values())):
            result = self.kernel(*host_args, **host_kwargs)
        return lending.give_back(faults.spoil(result))

    def _record(self, tape: recording.Tape, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Put the call on a tape, running the kernel to learn the shapes of its results."""
        # An update with `out` says where the results are, so the kernel need not run.
        known = tape.kind is recording.RecordingKind.UPDATE and self.entry.overload == "out"
        lending_class = _CheckingLending if known else _RecordingLending
        lending = lending_class(self.entry, settings().strict, tape)
        host_args = [
            lending.lend(self._parameter_name(index), value) for index, value in enumerate(args)
        ]
        host_kwargs = {name: lending.lend(name, value) for name, value in kwargs.items()}
        call = recording.FrozenCall(tape, args, kwargs)
        if lending.strict:
            # On the operands themselves: large ones are lent as zeros.
            self.run_check(*call.arguments, **call.named)
        result: Any = kwargs.get("out")
        results: recording.RecordedResults | None = None
        if not known:
            with torch.no_grad():
                result = lending.give_back(self.kernel(*host_args, **host_kwargs))
            results = lending.results
        if self.entry.launches:
            call.append(self.entry.key, functools.partial(self._rerun, call, results))
        return result

    def _rerun(self, call: recording.FrozenCall, results: recording.RecordedResults | None) -> None:
        if settings().strict:
            self.run_check(*call.arguments, **call.named)
        with torch.no_grad(), faults.writing((*call.arguments, *call.named.values())):
            result = self.kernel(*call.arguments, **call.named)
        faults.spoil(result)
        if results is not None:
            results.put(result)

    def _parameter_name(self, index: int) -> str:
        return self._parameters[index] if index < len(self._parameters) else f"argument {index}"


class _Lending:
    """Aliases handed to a kernel in one call, so that the originals can be handed back."""

    def __init__(self, entry: OperatorEntry, strict: bool) -> None:
        self.entry = entry
        self.strict = strict
        self.device_index: int | None = None
        # Keyed by identity: a kernel that returns the alias it was lent worked in place.
        self._aliases: dict[int, torch.Tensor] = {}
        self._originals: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def lend(self, name: str, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return self._lend_tensor(name, value)
        if type(value) in (list, tuple) and any(
            isinstance(item, (torch.Tensor, list, tuple)) for item in value
        ):
            return type(value)(self.lend(name, item) for item in value)
        return value

    def _lend_tensor(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        on_host = tensor.device.type == "cpu"
        if name in self.entry.host_arguments:
            if not on_host:
                self.read_by_host(name, tensor)
        elif on_host and self.strict:
            raise OperatorArgumentError(
                f"{self.entry.key}: {name} is a CPU tensor (shape {tuple(tensor.shape)}); the "
                f"operator takes npu tensors. Move it with .npu()"
            )
        if on_host:
            self._originals[id(tensor)] = (tensor, tensor)
            return tensor
        index = tensor.device.index
        if self.device_index is None:
            self.device_index = index
        elif self.device_index != index and self.strict:
            raise OperatorArgumentError(
                f"{self.entry.key}: {name} is on npu:{index}, an earlier argument on "
                f"npu:{self.device_index}; all tensors must be on one device"
            )
        known = self._aliases.get(id(tensor))
        if known is not None:
            return known
        alias = self._aliases[id(tensor)] = self.alias(tensor)
        # The alias is kept as well: its id must stay taken until give_back.
        self._originals[id(alias)] = (alias, tensor)
        return alias

    def give_back(self, result: Any) -> Any:
        if isinstance(result, torch.Tensor):
            lent = self._originals.get(id(result))
            return self.own_result(result) if lent is None else self.lent_result(lent[1])
        if type(result) in (list, tuple):
            return type(result)(self.give_back(item) for item in result)
        return result

    # What differs while recording.

    def read_by_host(self, name: str, tensor: torch.Tensor) -> None:
        counters.record_host_read(tensor.numel() * tensor.element_size())
        faults.raise_error()

    def alias(self, tensor: torch.Tensor) -> torch.Tensor:
        return _native().cpu_alias(tensor)

    def lent_result(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor

    def own_result(self, result: torch.Tensor) -> torch.Tensor:
        return _native().npu_alias(result, self.device_index)


class _RecordingLending(_Lending):
    """The same for a call that is recorded: nothing that was there before may change."""

    def __init__(self, entry: OperatorEntry, strict: bool, tape: recording.Tape) -> None:
        super().__init__(entry, strict)
        self._tape = tape
        self._results: recording.RecordedResults | None = None

    @property
    def results(self) -> recording.RecordedResults:
        if self._results is None:
            self._results = recording.RecordedResults(self._tape, self.device_index)
        return self._results

    def read_by_host(self, name: str, tensor: torch.Tensor) -> None:
        recording.before_host_read(f"{self.entry.key} with {name}, a host argument, on the device,")

    def alias(self, tensor: torch.Tensor) -> torch.Tensor:
        return _native().scratch_alias(tensor)

    def lent_result(self, tensor: torch.Tensor) -> torch.Tensor:
        return self.results.operand(tensor)

    def own_result(self, result: torch.Tensor) -> torch.Tensor:
        return self.results.give_back(result)


class _CheckingLending(_RecordingLending):
    """The same for a call whose kernel does not run: where its tensors are is checked."""

    def alias(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor


@functools.cache
def _native() -> Any:
    # Late: kernels and their unit tests need no native extension.
    return importlib.import_module("emulated_npu.device.native")


def _positional_names(kernel: Callable[..., Any]) -> tuple[str, ...]:
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = inspect.signature(kernel).parameters.values()
    return tuple(parameter.name for parameter in parameters if parameter.kind in kinds)


def operator(
    name: str,
    *,
    source: str,
    limits: str = "",
    missing: str = "",
    namespace: str = TORCH_NPU,
    overload: str = "",
    host_arguments: tuple[str, ...] = (),
    writes: tuple[str, ...] = (),
    launches: bool = True,
    options: Mapping[str, Any] | None = None,
) -> Callable[[Callable[P, R]], Operator[P, R]]:
    """Register a kernel as an operator; see the top of this file and OperatorEntry.

    launches: False for a function that starts nothing on the device (sizes, format queries).
    """

    def register(kernel: Callable[P, R]) -> Operator[P, R]:
        _require_parameters(name, kernel, (*host_arguments, *writes))
        entry = OperatorEntry(
            name, namespace, overload, source, limits, missing, host_arguments, writes,
            kernel.__module__, launches, options or {},
        )  # fmt: skip
        if entry.key in OPERATORS:
            raise ValueError(f"operator {entry.key} is already in {OPERATORS[entry.key].module}")
        wrapped = Operator(entry, kernel)
        object.__setattr__(entry, "function", wrapped)
        OPERATORS[entry.key] = entry
        if overload:
            base = OPERATORS[qualified_name(namespace, name)].function
            assert base is not None
            base.add_overload(overload, wrapped)
        return wrapped

    return register


def _require_parameters(name: str, kernel: Callable[..., Any], named: tuple[str, ...]) -> None:
    parameters = inspect.signature(kernel).parameters
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values()):
        return  # the kernel itself refuses keywords that it does not know
    unknown = set(named) - set(parameters)
    if unknown:
        raise ValueError(f"operator {name}: no such parameters: {sorted(unknown)}")


def missing(name: str, namespace: str = TORCH_NPU) -> Callable[..., NoReturn]:
    """A callable that stands for an operator we do not have and says so when it is called."""

    def refuse(*_args: Any, **_kwargs: Any) -> NoReturn:
        raise NotImplementedError(
            f"emulated NPU has no {namespace}.{name}; the operators it has are listed in "
            "docs/reference/operators.md, and its README says how to add one"
        )

    refuse.__name__ = refuse.__qualname__ = name
    return refuse


def load_all() -> None:
    """Import every operator module, so that OPERATORS is complete.

    Importing an operator module registers kernels here and does nothing else: no device, no
    torch.library registration (that is a function of its module, called by the emulator's start).
    """
    for package in ("operators", "custom_operators", "linear_attention"):
        for module_name in _module_names(f"emulated_npu.{package}"):
            importlib.import_module(module_name)


def _module_names(package_name: str) -> Iterator[str]:
    package = importlib.import_module(package_name)
    for module in pkgutil.walk_packages(package.__path__, f"{package_name}."):
        if module.name.rsplit(".", 1)[-1] not in ("table", "__main__"):
            yield module.name


def namespace_functions(namespace: str = TORCH_NPU) -> dict[str, Operator[..., Any]]:
    """Name -> operator of everything registered in one namespace (overloads hang on their base)."""
    return {
        entry.name: entry.function
        for entry in OPERATORS.values()
        if entry.namespace == namespace and not entry.overload and entry.function is not None
    }
